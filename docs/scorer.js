// Weights of the search: what a reader wants to do comes before what was changed or measured, and
// pages come before the functions of an interface.
const LATER = /^(CHANGELOG|CONTRIBUTING|scripts\/|docs\/(api\/|evidence|upgrading|bounds|performance))/;
var Scorer = {
  score: ([page, , , , score]) => LATER.test(page) ? score / 3 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
