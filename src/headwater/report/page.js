"use strict";
// Shows values under the pointer and makes the legends switches; the page is complete without it.
(() => {
  const make = (kind, name, parent) => {
    const node = document.createElement(kind);
    node.className = name;
    if (parent) parent.append(node);
    return node;
  };
  const hidden = new Set();

  for (const item of document.querySelectorAll("[data-switch]")) {
    const button = make("button", "");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.title = "show or hide this curve";
    button.append(...item.childNodes);
    item.append(button);
    button.addEventListener("click", () => {
      const id = item.dataset.switch;
      const off = !hidden.has(id);
      hidden[off ? "add" : "delete"](id);
      for (const node of document.querySelectorAll("[data-series]")) {
        if (node.dataset.series === id) node.classList.toggle("off", off);
      }
      for (const other of document.querySelectorAll("[data-switch]")) {
        if (other.dataset.switch === id) other.firstElementChild.setAttribute("aria-pressed", String(!off));
      }
    });
  }

  for (const source of document.querySelectorAll("script.hover")) {
    const chart = JSON.parse(source.textContent);
    const plot = source.parentElement.querySelector(".plot");
    const glass = make("div", "glass", plot);
    const hair = make("div", "hair", glass);
    const ring = make("div", "ring", glass);
    const tip = make("div", "tip", plot);
    const hide = () => [hair, ring, tip].forEach((node) => (node.hidden = true));
    hide();

    const show = (event) => {
      const box = glass.getBoundingClientRect();
      const x = event.clientX - box.left;
      const y = event.clientY - box.top;
      let near = null;
      for (const series of chart.series) {
        if (hidden.has(series.id)) continue;
        for (const point of series.points) {
          const across = point[0] * box.width - x;
          const far = chart.nearest === "x" ? Math.abs(across) : Math.hypot(across, point[1] - y);
          if (!near || far < near.far) near = { far, point, series };
        }
      }
      if (!near) return hide();
      const [share, high, where] = near.point;
      hair.hidden = tip.hidden = false;
      ring.hidden = chart.nearest === "x";
      hair.style.left = ring.style.left = `${100 * share}%`;
      ring.style.top = `${high}px`;
      tip.replaceChildren();
      make("b", "", tip).textContent = where;
      const listed = chart.nearest === "x" ? chart.series : [near.series];
      for (const series of listed) {
        const point = chart.nearest === "x" ? series.points.find((each) => each[0] === share) : near.point;
        if (!point || hidden.has(series.id)) continue;
        const line = make("div", "", tip);
        make("i", series.look, line);
        line.append(`${series.name}: ${point[3]}`);
      }
      const outer = plot.getBoundingClientRect();
      const left = box.left - outer.left + share * box.width;
      const over = left + 16 + tip.offsetWidth > outer.width;
      tip.style.left = `${Math.max(0, over ? left - 16 - tip.offsetWidth : left + 16)}px`;
      tip.style.top = `${Math.max(0, Math.min(y, box.height - tip.offsetHeight + 40))}px`;
    };
    glass.addEventListener("pointermove", show);
    glass.addEventListener("pointerdown", show);
    glass.addEventListener("pointerleave", hide);
  }
})();
