// Columns of a table are sorted by a click on their heads; without this, they stay in the order of the runs.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const data = row.cells[column].querySelector("data");
    return data ? Number(data.value) : row.cells[column].textContent;
  };
  const compare = (a, b, sign) => {
    if (typeof a === "string" || typeof b === "string") return sign * String(a).localeCompare(String(b));
    return Number.isNaN(a) - Number.isNaN(b) || sign * (a - b); // unknown values are the last in either order
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compare(value(a, column), value(b, column), down ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
}
