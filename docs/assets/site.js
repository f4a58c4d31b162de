"use strict";
/* A table that is wider than the page scrolls by itself; with the keyboard too, where it can have the focus. */
const reachable = () =>
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset .output").forEach(each => {
    if (each.scrollWidth > each.clientWidth) {
      each.tabIndex = 0;
      each.setAttribute("role", "region");
      each.setAttribute("aria-label", each.querySelector("caption")?.textContent || "Table, scrolls sideways");
    } else each.removeAttribute("tabindex");
  });
document$.subscribe(() => setTimeout(reachable));
addEventListener("resize", reachable);
