// What happens when the page of a report opens.

const groups = [...document.querySelectorAll("[data-group]")].map((element) => new Group(element));
const owner = (figure) => groups[Number(figure.closest("[data-group]").dataset.group)];
const figures = [...document.querySelectorAll("figure[data-chart]")];

startTheme(() => {
  recolour();
  for (const group of groups) group.redraw();
});
startPage();
groups.forEach((group) => group.start());
watchFigures(figures, (figure, isSeen) => {
  const group = owner(figure);
  group.seen[isSeen ? "add" : "delete"](figure);
  if (!isSeen) return;
  if (!group.drawn.has(figure)) drawFirst(figure, () => group.draw(figure));
  else if (group.stale.has(figure)) group.draw(figure);
});
watchPaper(figures, (figure, width) => owner(figure).draw(figure, width));
