"use strict";
/* A table that is wider than the page scrolls by itself; with the keyboard too, where it can have the focus. */
const reachable = () =>
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset .output").forEach(each => {
    if (each.scrollWidth > each.clientWidth) {
      each.tabIndex = 0;
      each.setAttribute("role", "group");
      each.setAttribute("aria-label", each.querySelector("caption")?.textContent || "Table, scrolls sideways");
    } else each.removeAttribute("tabindex");
  });
/* The buttons of each code block have a name of their own. */
const named = () =>
  document.querySelectorAll(".md-code__nav").forEach((each, at) => each.setAttribute("aria-label", `Code block ${at + 1}`));
document$.subscribe(() => setTimeout(() => { reachable(); named(); }));
addEventListener("resize", reachable);
