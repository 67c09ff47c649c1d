// Weights of the search: what a reader wants to do comes before what was changed or measured, pages
// come before the functions of an interface, and a processor's own page before others that name it.
const WEIGHTS = [
  [/^docs\/processors\//, 1.4],
  [/^(CHANGELOG|CONTRIBUTING|scripts\/|docs\/(api\/|evidence|upgrading|bounds|performance))/, 0.3],
];
var Scorer = {
  score: ([page, , , , score]) =>
    score * (WEIGHTS.find(([pages]) => pages.test(page))?.[1] ?? 1),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
