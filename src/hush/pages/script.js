// Charts: tooltips, keyboard access, legends that hide series, tables of the numbers, CSV downloads. And sortable tables.
(() => {
  "use strict";
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  const panelOf = (element) => element.closest("figure.panel");
  const numbers = (panel) => (panel.numbers ??= JSON.parse(panel.querySelector("script").textContent));
  const digits = (value) => Number(value.toPrecision(4)).toString();
  const words = (axis, value) => {
    if (value === null || value === undefined) return "–";
    if (axis.categories.length) return axis.categories[value] ?? "";
    return axis.percent ? `${(100 * value).toPrecision(3)}%` : digits(value);
  };
  const placed = (axis, value) => ((axis.log ? Math.log10(value) : value) - axis.low) / (axis.high - axis.low);

  // All points that can be pointed at, in pixels of the drawing that is shown, from left to right.
  const points = (panel) => {
    const svg = [...panel.querySelectorAll("svg")].find((each) => each.getClientRects().length);
    const chart = numbers(panel), narrow = svg.parentElement.classList.contains("narrow");
    const [left, top, width, height, whole] = chart.box[narrow ? 1 : 0];
    const shape = svg.getBoundingClientRect(), scale = shape.width / whole, found = [];
    chart.series.forEach((series, number) => {
      if (!series.listed || svg.querySelector(`[data-series="${number}"]`).classList.contains("hidden")) return;
      series.x.forEach((x, place) => {
        const y = series.y[place];
        if (y === null || x === null) return;
        const px = shape.left + scale * (left + width * placed(chart.x, x));
        const py = shape.top + scale * (top + height * (1 - placed(chart.y, y)));
        if (Number.isFinite(px + py)) found.push({ px, py, series, place });
      });
    });
    return found.sort((one, two) => one.px - two.px || one.py - two.py);
  };
  const describe = (panel, { series, place }) => {
    const chart = numbers(panel), lines = [];
    if (series.labels.length) lines.push(series.labels[place]);
    if (series.name && series.name !== series.labels[place]) lines.push(series.name);
    lines.push(`${chart.x.title || "at"} ${words(chart.x, series.x[place])}`);
    if (series.values.length) {
      lines.push(`${chart.y.title} ${words(chart.y, series.y[place])}`);
    } else {
      lines.push(`${chart.y.title || "value"} ${words(chart.y, series.y[place])}`);
    }
    if (series.low.length && series.low[place] !== series.high[place]) {
      lines.push(`${words(chart.y, series.low[place])} to ${words(chart.y, series.high[place])}`);
    }
    return lines.join("\n");
  };
  const show = (panel, point) => {
    tip.textContent = describe(panel, point);
    tip.hidden = false;
    const room = document.documentElement.clientWidth, size = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(point.px + 12, room - size.width - 6)) + scrollX}px`;
    tip.style.top = `${Math.max(6, point.py - size.height - 10) + scrollY}px`;
  };
  const hide = () => { tip.hidden = true; };

  document.addEventListener("pointermove", (event) => {
    const drawing = event.target.closest?.(".drawing");
    if (!drawing) return hide();
    const panel = panelOf(drawing);
    let best = null, least = 60 ** 2;
    for (const point of points(panel)) {
      const apart = (point.px - event.clientX) ** 2 + (point.py - event.clientY) ** 2;
      if (apart < least) [best, least] = [point, apart];
    }
    if (best) show(panel, best); else hide();
  });
  document.addEventListener("keydown", (event) => {
    const drawing = event.target.closest?.(".drawing");
    if (event.key === "Escape") return hide();
    if (!drawing || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const panel = panelOf(drawing), all = points(panel);
    if (!all.length) return;
    const last = all.length - 1, now = panel.at ?? -1;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    panel.at = Math.max(0, Math.min(last, to));
    show(panel, all[panel.at]);
  });
  document.addEventListener("focusout", hide);

  const table = (panel) => {
    const chart = numbers(panel), rows = [];
    const bands = chart.series.some((series) => series.listed && series.low.length);
    const labels = chart.series.some((series) => series.listed && series.labels.length);
    const values = chart.series.some((series) => series.listed && series.values.length);
    const head = ["series", chart.x.title || "x", chart.y.title || "y"];
    if (values) head.push("value");
    if (bands) head.push("low", "high");
    if (labels) head.push("label");
    for (const series of chart.series) {
      if (!series.listed) continue;
      series.x.forEach((x, place) => {
        const name = (axis, value) => (axis.categories.length ? axis.categories[value] ?? "" : value);
        const row = [series.name, name(chart.x, x), name(chart.y, series.y[place])];
        if (values) row.push(series.values[place]);
        if (bands) row.push(series.low[place], series.high[place]);
        if (labels) row.push(series.labels[place]);
        rows.push(row);
      });
    }
    return { head, rows };
  };
  // A spreadsheet takes a text that begins with one of these for a formula.
  const quoted = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button");
    if (!button) return;
    if (button.matches(".csv")) {
      const panel = panelOf(button), { head, rows } = table(panel);
      const text = [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text, "\r\n"], { type: "text/csv" }));
      link.download = `${panel.id.replace(/^chart-/, "")}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    } else if (button.matches(".key")) {
      const hidden = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!hidden));
      for (const group of panelOf(button).querySelectorAll(`[data-series="${button.dataset.key}"]`)) {
        group.classList.toggle("hidden", hidden);
      }
    } else if (button.closest("table.sortable th")) {
      sort(button.closest("th"));
    }
  });
  const MOST = 500;
  document.addEventListener("toggle", (event) => {
    const details = event.target;
    if (!details.matches?.("details.numbers") || !details.open || details.querySelector("table")) return;
    const { head, rows } = table(panelOf(details)), made = document.createElement("table");
    const line = (parent, cells, kind) => {
      const row = parent.insertRow();
      for (const cell of cells) {
        const made = document.createElement(kind);
        if (kind === "th") made.scope = "col";
        made.textContent = typeof cell === "number" ? digits(cell) : cell ?? "–";
        row.append(made);
      }
    };
    line(made.createTHead(), head, "th");
    const body = made.createTBody();
    for (const row of rows.slice(0, MOST)) line(body, row, "td");
    const scroll = document.createElement("div");
    scroll.className = "scroll tall";
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "Numbers of the chart");
    scroll.append(made);
    details.append(scroll);
    if (rows.length > MOST) details.append(`The first ${MOST} of ${rows.length} rows; the CSV has all of them.`);
  }, true);

  const key = (row, column) => row.cells[column].dataset.value;
  const sort = (head) => {
    const sorted = head.closest("table");
    const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of sorted.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    const rows = [...sorted.tBodies[0].rows];
    rows.sort((one, two) => {
      const a = key(one, head.cellIndex), b = key(two, head.cellIndex);
      const numeric = Number(a) - Number(b);
      return way * (Number.isNaN(numeric) ? a.localeCompare(b) : numeric);
    });
    sorted.tBodies[0].append(...rows);
  };
})();
