// The live page: replaces its elements as the server sends them, and asks for a stop.
(() => {
  "use strict";
  const says = document.getElementById("connection");
  const hidden = new Map();
  const swap = (id, html) => {
    const panel = document.getElementById(id);
    if (!panel || panel.querySelector("details.numbers[open]")) return;
    const focused = panel.contains(document.activeElement) ? document.activeElement.className : "";
    for (const key of panel.querySelectorAll(".key")) hidden.set(`${id} ${key.textContent}`, key.getAttribute("aria-pressed") === "false");
    const scrolled = panel.querySelector(".scroll")?.scrollLeft ?? 0;
    panel.innerHTML = html;
    for (const key of panel.querySelectorAll(".key")) if (hidden.get(`${id} ${key.textContent}`)) key.click();
    if (scrolled) panel.querySelector(".scroll")?.scrollTo({ left: scrolled });
    if (focused) panel.querySelector(`.${focused.trim().split(/\s+/).join(".")}`)?.focus({ preventScroll: true });
  };
  const events = new EventSource(`events${location.search}`);
  events.onopen = () => { says.textContent = "live"; says.dataset.state = "live"; };
  events.onerror = () => { says.textContent = "not connected"; says.dataset.state = "lost"; };
  events.onmessage = (event) => {
    const news = JSON.parse(event.data);
    for (const [id, html] of Object.entries(news.parts)) swap(id, html);
    if (news.title) document.getElementById("title").textContent = document.title = news.title;
    const button = document.getElementById("stop");
    if (button && news.stoppable !== undefined) button.hidden = !news.stoppable;
  };
  document.getElementById("stop")?.addEventListener("click", async (event) => {
    const button = event.target, said = document.getElementById("said");
    if (button.dataset.sure !== "yes") {
      button.dataset.sure = "yes";
      button.textContent = "Press again to stop";
      setTimeout(() => { button.dataset.sure = ""; button.textContent = "Stop after this round"; }, 5000);
      return;
    }
    button.disabled = true;
    try {
      const answer = await fetch("stop", { method: "POST", headers: { "X-Hush-Token": button.dataset.token } });
      said.textContent = await answer.text();
      button.disabled = answer.ok;
    } catch {
      said.textContent = "The server cannot be reached.";
      button.disabled = false;
    }
  });
})();
