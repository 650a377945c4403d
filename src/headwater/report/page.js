"use strict";
// Draws the charts, reads the controls, sorts and filters the table of runs and, if the page is served, renews it.
(async () => {
  const $ = (selector, top = document) => [...top.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const nonce = document.currentScript.nonce;
  let data, rows, views;

  async function unpack() {
    const bytes = Uint8Array.from(atob(one("#vega").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.nonce = nonce;
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  function read() {
    data = JSON.parse(one("#data").textContent);
    rows = data.points.map((values) => Object.fromEntries(data.fields.map((key, at) => [key, values[at] ?? undefined])));
    views = new Map();
  }

  const controls = () => new FormData(one("#controls") ?? undefined);
  const shown = () => ($("[name=shown]").length ? controls().getAll("shown") : [...new Set(rows.map((row) => row.name))]);

  function curve(key) {
    const chosen = controls(), x = chosen.get("x");
    const spec = structuredClone(data.charts[`${key}-${x}`]);
    const asked = (name) => Number(chosen.get(name)), speed = (name) => 8e-6 / (asked(name) > 0 ? asked(name) : data.links[name]);
    const far = speed("far"), near = speed("near"), farTrip = Math.max(0, asked("far_ms")) / 1000, nearTrip = Math.max(0, asked("near_ms")) / 1000;
    for (const row of rows) row.time = row.seconds + far * row.bytes + near * row.near + farTrip * row.far_trips + nearTrip * row.near_trips;
    spec.data = { values: rows };
    if (chosen.get("logx")) spec.encoding.x.scale = { type: "log", nice: false };
    if (chosen.get("logy")) for (const layer of spec.layer) layer.encoding.y.scale = { type: "log" };
    if (matchMedia("(pointer: fine)").matches)
      spec.layer[1].params = [{ name: "zoom", bind: "scales", select: { type: "interval", zoom: "wheel![event.shiftKey]" } }];
    return spec;
  }

  function tip(value) {
    const safe = (text) => String(text).replace(/[&<>]/g, (letter) => `&#${letter.charCodeAt(0)};`);
    if (!("round" in value && "name" in value)) {
      return `<table>${Object.entries(value).map(([key, text]) => `<tr><td>${safe(key)}</td><td>${safe(text)}</td></tr>`).join("")}</table>`;
    }
    const visible = new Set(shown()), at = Number(String(value.round).replace(/\D/g, ""));
    const found = rows.filter((row) => row.round === at && !row.tail && visible.has(row.name)).sort((a, b) => b.accuracy - a.accuracy);
    const lines = found.slice(0, 12).map((row) => `<tr><td>${safe(row.name)}</td><td>${percent(row.accuracy)}</td><td>${number(row.loss)}</td><td>${bytes(row.bytes)}</td></tr>`);
    return `<b>Round ${at}</b><table><tr><td></td><td>accuracy</td><td>loss</td><td>sent</td></tr>${lines.join("")}</table>`;
  }
  const percent = (value) => (value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
  const number = (value) => (value === undefined ? "–" : value.toFixed(3));
  const bytes = (value) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    while (value >= 999.5 && units.length > 1) value /= 1000, units.shift();
    return `${Number(value.toPrecision(3))} ${units[0]}`;
  };

  async function draw(box) {
    const spec = box.dataset.curve ? curve(box.dataset.curve) : data.charts[box.dataset.chart];
    for (const param of spec.params ?? []) param.value = signals()[param.name];
    views.get(box)?.finalize();
    const options = { mode: "vega-lite", ast: true, actions: false, renderer: "svg", config: data.config, logLevel: 1, tooltip: { formatTooltip: tip } };
    const inner = box.firstElementChild ?? box.appendChild(document.createElement("div")); // Vega gives it a role
    const { view } = await vegaEmbed(inner, { ...spec, autosize: { type: "fit-x", contains: "padding" } }, options);
    views.set(box, view);
  }

  const signals = () => ({ shown: shown(), from: Number(controls().get("from")) || 0, to: Number(controls().get("to")) || 1e12 });

  async function filter(box) {
    const view = views.get(box), known = view.getState({ signals: (name) => name === "shown" }).signals;
    if (!("shown" in known)) return;
    for (const [name, value] of Object.entries(signals())) if (name === "shown" || box.dataset.curve) view.signal(name, value);
    await view.runAsync();
  }

  const seen = (box) => !box.closest("details:not([open])");
  async function drawAll() {
    for (const box of $(".chart")) {
      if (!views.has(box) && seen(box)) await draw(box).then(() => new Promise((next) => setTimeout(next)));
      if (box.dataset.curve) performance.mark("curves");
    }
    document.documentElement.dataset.drawn = $(".chart svg").length;
  }

  function values(fold) {
    const box = fold.querySelector(".scroll"), names = [...new Set(rows.map((row) => row.name))];
    if (!fold.open || box.firstChild) return;
    const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    const cell = (line, text) => line.insertCell().append(text);
    cell(head, "Round");
    for (const name of names) cell(head, `${name}, accuracy`), cell(head, `${name}, loss`);
    const found = new Map(rows.map((row) => [`${row.round} ${row.name}`, row]));
    for (const at of [...new Set(rows.map((row) => row.round))].sort((a, b) => a - b)) {
      const line = body.insertRow();
      cell(line, at);
      for (const name of names) {
        const row = found.get(`${at} ${name}`) ?? {};
        cell(line, percent(row.accuracy)), cell(line, number(row.loss));
      }
    }
    box.append(table);
  }

  function changed(event) {
    const form = one("#controls");
    form.classList.toggle("timed", controls().get("x") === "time");
    document.body.classList.toggle("timed", controls().get("x") === "time");
    const light = ["shown", "from", "to"].includes(event?.target.name);
    for (const box of $(".chart")) {
      if (views.has(box) && (light || !box.dataset.curve)) filter(box);
      else if (views.has(box)) draw(box);
    }
  }

  function sortable(table) {
    const body = table.tBodies[0], key = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent;
    const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
    for (const [at, head] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const down = head.ariaSort === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.ariaSort = down ? "descending" : "ascending";
        body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * compare(key(a, at), key(b, at))));
      };
    }
    one("#filter").oninput = (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/);
      const hits = [...body.rows].filter((row) => !(row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word))));
      one("#matches").textContent = event.target.value ? `${hits.length} of ${body.rows.length}` : "";
    };
  }

  async function start() {
    read();
    $("table.sortable").forEach(sortable);
    for (const fold of $("details")) fold.ontoggle = () => (fold.id === "values" ? values(fold) : drawAll());
    const form = one("#controls");
    if (form) {
      form.oninput = changed;
      form.onsubmit = (event) => event.preventDefault();
      form.onreset = () => setTimeout(changed);
      for (const name of ["all", "none"])
        if (form.elements[name]) form.elements[name].onclick = () => {
          for (const box of $("[name=shown]")) box.checked = name === "all";
          changed();
        };
    }
    await drawAll();
  }

  function restore(before, form) {
    for (const old of form && before ? before.elements : []) {
      const same = [...form.elements].find((each) => each.name && each.name === old.name && (old.type === "number" || each.value === old.value));
      if (same && old.type === "number") same.value = old.value === old.defaultValue ? same.value : old.value;
      else if (same) same.checked = old.checked;
    }
  }

  async function renew() {
    const mark = (text, stale) => { one("#live").textContent = text; one("#live").classList.toggle("stale", stale); };
    try {
      const state = await (await fetch("state", { cache: "no-store" })).text();
      if (state !== one("#data").dataset.live) {
        const fresh = new DOMParser().parseFromString(await (await fetch("./", { cache: "no-store" })).text(), "text/html");
        const folds = new Map($("details").map((fold) => [fold.id, fold.open])), before = one("#controls");
        for (const part of ["header", "main", "#data"]) one(part).replaceWith(fresh.querySelector(part));
        for (const fold of $("details")) fold.open = folds.get(fold.id) ?? fold.open;
        restore(before, one("#controls"));
        await start();
      }
      mark("live", false);
    } catch {
      mark("the command that serves this page has ended", true);
    }
  }

  await unpack();
  await start();
  if (one("#data").dataset.live !== undefined) setInterval(() => document.hidden || renew(), 2000);
})();
