"use strict";
// Comfort only: without this script every word of the report can be read.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const chapters = Array.from(document.querySelectorAll("details"));

  const openAll = document.getElementById("open-all");
  openAll.hidden = false;
  openAll.addEventListener("click", function () {
    const open = chapters.some(function (chapter) { return !chapter.open; });
    chapters.forEach(function (chapter) { chapter.open = open; });
    openAll.textContent = open ? "Close all chapters" : "Open all chapters";
  });
  let closed = [];
  window.addEventListener("beforeprint", function () {
    closed = chapters.filter(function (chapter) { return !chapter.open && chapter.id !== "machine"; });
    closed.forEach(function (chapter) { chapter.open = true; });
  });
  window.addEventListener("afterprint", function () {
    closed.forEach(function (chapter) { chapter.open = false; });
  });
  function openLinked() {
    const chapter = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (chapter && chapter.tagName === "DETAILS") chapter.open = true;
  }
  window.addEventListener("hashchange", openLinked);
  openLinked();

  const machine = document.getElementById("machine");
  machine.addEventListener("toggle", function () {
    const text = document.getElementById("machine-text");
    if (machine.open && !text.textContent) {
      text.textContent = data.report ? JSON.stringify(data.report, null, 2) : "Too large to show here: see report.json.";
    }
  });

  const picture = document.querySelector("#timeline svg.timeline");
  if (!picture) return;
  const box = picture.viewBox.baseVal;
  const at = function (name) { return Number(picture.dataset[name]); };
  const left = at("left"), right = box.width - at("right");
  const cursor = document.createElementNS(picture.namespaceURI, "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", "24");
  cursor.setAttribute("y2", String(at("bottom")));
  const readout = document.getElementById("readout");
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];

  function valueText(value, unit) {
    if (unit !== "bytes") return Math.round(value).toLocaleString("en").replace(/,/g, " ");
    let step = 0;
    while (Math.abs(value) >= 1023.95 && step < units.length - 1) { value /= 1024; step += 1; }
    return value.toFixed(step ? 1 : 0) + " " + units[step];
  }
  function nearest(points, t) {
    let best = points[0];
    for (const point of points) if (Math.abs(point[0] - t) < Math.abs(best[0] - t)) best = point;
    return best;
  }
  let time = at("end");
  function show(t) {
    time = Math.min(Math.max(t, at("start")), at("end"));
    const x = left + (right - left) * (time - at("start")) / (at("end") - at("start"));
    cursor.setAttribute("x1", String(x));
    cursor.setAttribute("x2", String(x));
    picture.append(cursor);
    readout.textContent = time.toFixed(1) + " s: " + data.timeline.map(function (line) {
      return line.points.length ? line.name + " " + valueText(nearest(line.points, time)[1], line.unit) : "";
    }).filter(Boolean).join(", ");
  }
  picture.addEventListener("pointermove", function (event) {
    const frame = picture.getBoundingClientRect();
    const x = (event.clientX - frame.left) * box.width / frame.width;
    if (x >= left && x <= right) show(at("start") + (at("end") - at("start")) * (x - left) / (right - left));
  });
  picture.parentElement.addEventListener("keydown", function (event) {
    const step = (at("end") - at("start")) / 60;
    if (event.key === "ArrowLeft") show(time - step);
    else if (event.key === "ArrowRight") show(time + step);
    else return;
    event.preventDefault();
  });
})();
