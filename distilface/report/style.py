"""The style sheet of the HTML page."""

CSS = """
:root { --ink: #1d2733; --soft: #5b6875; --paper: #ffffff; --card: #f5f7f9; --rule: #d9dfe5; --accent: #0b6e4f;
  --warn: #8a5200; --warn-card: #fff6e5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --soft: #9aa7b3; --paper: #14191f; --card: #1d242c;
  --rule: #36404a; --accent: #5ccfa3; --warn: #f0bd6a; --warn-card: #2d2415; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.1rem; margin: 0; letter-spacing: .01em; }
header p { margin: .1rem 0 1.5rem; color: var(--soft); }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 0; }
section { margin: 0 0 2.5rem; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .92em;
  overflow-wrap: anywhere; }
pre { background: var(--card); padding: .8rem 1rem; border-radius: 8px; white-space: pre-wrap; margin: .5rem 0 0; }
.about { color: var(--soft); margin: .15rem 0 .7rem; max-width: 46rem; }
.verdict { background: var(--card); border-left: 5px solid var(--accent); border-radius: 0 10px 10px 0;
  padding: 1.1rem 1.4rem; margin-bottom: 1.5rem; }
.verdict h2 { font-size: 1.55rem; }
.verdict p { margin: .35rem 0 0; font-size: 1.05rem; max-width: 60rem; }
.verdict ul { margin: .6rem 0 0; padding-left: 1.2rem; }
.verdict .cautions { color: var(--warn); }
.verdict details { margin-top: .7rem; color: var(--soft); }
.verdict summary { cursor: pointer; }
.warning { background: var(--warn-card); color: var(--warn); border-radius: 8px; padding: .6rem 1rem;
  margin: 0 0 1.5rem; }
.warning + .warning { margin-top: -1rem; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible, pre:focus-visible { outline: 2px solid var(--accent);
  outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .5rem .75rem; border-bottom: 1px solid var(--rule); vertical-align: top;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-weight: 600; font-size: .85rem; white-space: normal; vertical-align: bottom; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--paper); min-width: 9rem;
  max-width: 20rem; overflow-wrap: break-word; white-space: normal; }
td small, th small { display: block; color: var(--soft); font-size: .82rem; font-weight: 400;
  white-space: pre; }
th small { white-space: normal; }
.facts th { color: var(--soft); font-weight: 400; width: 12rem; white-space: nowrap; }
.facts td { text-align: left; white-space: normal; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 2rem; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .4rem; }
figure svg { display: block; width: 100%; min-width: 24rem; height: auto; }
@media (max-width: 40rem) { main { padding: 1.25rem 1rem 3rem; } .verdict { padding: .9rem 1rem; }
  .verdict h2 { font-size: 1.3rem; } th, td { padding: .45rem .55rem; } tbody th { min-width: 7rem; max-width: 9.5rem; }
  .facts th { width: auto; white-space: normal; } }
@media print { .scroll { overflow: visible; } details { display: none; } }
"""
