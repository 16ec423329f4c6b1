// Axes on linear or logarithmic scales, and points on them.

function logTicks(low, high) {
  const ticks = [];
  for (let e = Math.ceil(Math.log10(low) - 1e-9); e <= Math.log10(high) + 1e-9; ++e) ticks.push(10 ** e);
  return ticks;
}
function linearTicks(high, most) {
  const rough = high / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((s) => s * power >= rough);
  const ticks = [];
  for (let t = 0; t <= high * (1 + 1e-9); t += step) ticks.push(t);
  return ticks;
}

// axis: {low, high, log?, name, text(value)}; the plot has children drawn by add(x, y) in data units.
function plot(label, xAxis, yAxis) {
  const width = 1100, height = 430, left = 78, right = 18, top = 14, bottom = 50;
  const place = (axis, from, to) => (value) => {
    const f = axis.log ? Math.log(value / axis.low) / Math.log(axis.high / axis.low) : (value - axis.low) / (axis.high - axis.low);
    return from + f * (to - from);
  };
  const x = place(xAxis, left, width - right), y = place(yAxis, height - bottom, top);
  const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  const ticks = (axis) => (axis.log ? logTicks(axis.low, axis.high) : linearTicks(axis.high, 8)).filter((t) => t >= axis.low);
  for (const t of ticks(xAxis)) {
    root.append(draw("line", { class: "grid", x1: x(t), x2: x(t), y1: top, y2: height - bottom }),
      draw("text", { x: x(t), y: height - bottom + 18, "text-anchor": "middle" }, xAxis.text(t)));
  }
  for (const t of ticks(yAxis)) {
    root.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(t), y2: y(t) }),
      draw("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, yAxis.text(t)));
  }
  root.append(
    draw("path", { class: "axis", fill: "none", d: `M${left} ${top}V${height - bottom}H${width - right}` }),
    draw("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle", class: "strong" }, xAxis.name),
    draw("text", { transform: `translate(16 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "strong" }, yAxis.name));
  return { root, x, y, left, right: width - right, top, bottom: height - bottom };
}

// Writes texts that neither cover each other nor leave the plot: each at the first of its places [x, y, anchor] that is free, or nowhere.
function labels(chart) {
  const taken = [], letter = 6.7, above = 11, below = 4;
  const box = (text, [x, y, anchor]) => {
    const width = letter * text.length, left = anchor === "end" ? x - width : anchor === "middle" ? x - width / 2 : x;
    return { left, right: left + width, top: y - above, bottom: y + below };
  };
  const free = (b) => b.left >= chart.left && b.right <= chart.right && b.top >= chart.top && b.bottom <= chart.bottom &&
    !taken.some((t) => b.left < t.right && t.left < b.right && b.top < t.bottom && t.top < b.bottom);
  return (text, places, attributes) => {
    const place = places.find((p) => free(box(text, p)));
    if (!place) return false;
    taken.push(box(text, place));
    chart.root.append(draw("text", { x: place[0], y: place[1], "text-anchor": place[2], ...attributes }, text));
    return true;
  };
}

function circle(chart, px, py, radius, color, text) {
  return withTip(draw("circle", { class: "mark", cx: chart.x(px), cy: chart.y(py), r: radius, fill: color, "fill-opacity": 0.85 }), text);
}
function diamond(chart, px, py, radius, color, text) {
  const x = chart.x(px), y = chart.y(py), r = radius * 1.25;
  return withTip(draw("path", { class: "mark", d: `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`, fill: color, "fill-opacity": 0.85 }), text);
}
function star(chart, px, py, radius, color, text) {
  const x = chart.x(px), y = chart.y(py);
  let d = "";
  for (let i = 0; i < 10; ++i) {
    const r = i % 2 === 0 ? radius : radius * 0.45, angle = (i * Math.PI) / 5 - Math.PI / 2;
    d += (i === 0 ? "M" : "L") + (x + r * Math.cos(angle)) + " " + (y + r * Math.sin(angle));
  }
  return withTip(draw("path", { class: "mark", d: d + "Z", fill: color }), text);
}
