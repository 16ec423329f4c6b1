// Elements, figures as text, the tip that follows hover and focus, tables that sort. Text is set as text, never as markup.
"use strict";

function make(tag, attributes, children, space) {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of [].concat(children === undefined ? [] : children)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}
const el = (tag, attributes, children) => make(tag, attributes, children);
const draw = (tag, attributes, children) => make(tag, attributes, children, "http://www.w3.org/2000/svg");

// ---- Figures as text

function digits(value, count) {
  return Number(value).toLocaleString("en-US", { maximumSignificantDigits: count || 3 });
}
function whole(value) { return Math.round(value).toLocaleString("en-US"); }
function scaled(value, units, step) {
  let i = 0;
  while (i + 1 < units.length && Math.abs(value) >= step) { value /= step; ++i; }
  return (Math.abs(value) >= 100 ? whole(value) : digits(value)) + " " + units[i];
}
function bytes(value) { return scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024); }
function seconds(value) {
  if (value >= 1) return digits(value, 4) + " s";
  if (value >= 1e-3) return digits(value * 1e3, 4) + " ms";
  return digits(value * 1e6, 3) + " \u00b5s";
}
function rate(value, unit) { return scaled(value, ["", "k", "M", "G", "T", "P"].map((p) => p + unit), 1000); }
function percent(share) { return digits(share * 100) + " %"; }
// What rests on a figure that nobody verified.
function marked(text, unverified) { return unverified ? text + "*" : text; }

// ---- Tip

function showTip(target, text) {
  const tip = document.getElementById("tip");
  tip.textContent = text;
  tip.hidden = false;
  const box = target.getBoundingClientRect();
  const left = Math.min(box.left + box.width / 2 + 12, document.documentElement.clientWidth - tip.offsetWidth - 8);
  let top = box.bottom + 8;
  if (top + tip.offsetHeight > document.documentElement.clientHeight) top = box.top - tip.offsetHeight - 8;
  tip.style.left = Math.max(left, 8) + window.scrollX + "px";
  tip.style.top = top + window.scrollY + "px";
}
function hideTip() { document.getElementById("tip").hidden = true; }
// A mark of a chart that can be reached with the keyboard.
function withTip(node, text) {
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", text.replaceAll("\n", ", "));
  for (const event of ["mouseenter", "focus"]) node.addEventListener(event, () => showTip(node, text));
  for (const event of ["mouseleave", "blur"]) node.addEventListener(event, hideTip);
  return node;
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

// ---- Parts of the page

function section(title, children, attributes) {
  return el("section", attributes, [el("h2", {}, title)].concat(children));
}
function figure(value, name) { return el("div", { class: "figure" }, [el("b", {}, value), el("span", {}, name)]); }
function legend(items) {
  return el("div", { class: "legend" }, items.map(([color, text]) => el("span", {}, [el("i", { style: "background:" + color }), text])));
}

// One of several views at a time: choices [{name, view()}].
function tabs(choices, label) {
  const place = el("div");
  const buttons = choices.map((choice, i) => el("button", { type: "button", onclick: () => show(i) }, choice.name));
  function show(chosen) {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === chosen));
    place.replaceChildren(choices[chosen].view());
    hideTip();
  }
  show(0);
  if (choices.length === 1) return place;
  return el("div", {}, [el("div", { class: "tabs", role: "group", "aria-label": label }, buttons), place]);
}

// columns: [{name, value(row), text(row)?, wide?}]; a column of numbers is aligned right and sorted by value, largest first.
function sortedTable(caption, columns, rows, most) {
  const body = el("tbody");
  let order = rows.slice(), limit = most || 40;
  const isNumber = columns.map((column) => rows.length > 0 && typeof column.value(rows[0]) === "number");
  const heads = columns.map((column, c) =>
    el("th", { scope: "col", class: isNumber[c] ? "number" : undefined },
      el("button", { type: "button", onclick: () => sort(c) }, column.name)));
  const more = el("button", { type: "button", onclick: () => { limit = rows.length; fill(); } });
  function fill() {
    body.replaceChildren(...order.slice(0, limit).map((row) => el("tr", {}, columns.map((column, c) =>
      el("td", { class: isNumber[c] ? "number" : column.wide ? "wide" : undefined },
        column.text ? column.text(row) : String(column.value(row)))))));
    more.hidden = order.length <= limit;
    more.textContent = "show all " + order.length;
  }
  function sort(c) {
    const before = heads[c].getAttribute("aria-sort");
    const down = before ? before === "ascending" : isNumber[c];
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[c].setAttribute("aria-sort", down ? "descending" : "ascending");
    order = rows.slice().sort((a, b) => {
      const x = columns[c].value(a), y = columns[c].value(b);
      return (isNumber[c] ? x - y : String(x).localeCompare(String(y))) * (down ? -1 : 1);
    });
    fill();
  }
  fill();
  return el("div", { class: "scroll" }, [
    el("table", {}, [caption ? el("caption", {}, caption) : null, el("thead", {}, el("tr", {}, heads)), body]), more]);
}
