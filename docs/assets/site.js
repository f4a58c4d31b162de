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
/* The buttons of a code block are no landmark of the page. */
const grouped = () => document.querySelectorAll(".md-code__nav").forEach(each => each.setAttribute("role", "group"));
document$.subscribe(() => setTimeout(() => { reachable(); grouped(); }));
addEventListener("resize", reachable);
