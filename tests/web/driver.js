/* Uses the page as a person does, and writes what it found to the console, which tests/web/explain reads. */
'use strict';
const found = [], failures = [];
addEventListener('error', e => failures.push('an error: ' + e.message));

function check(what, good) {
  found.push(what);
  if (!good)
    failures.push(what + ' (' + document.getElementById('caption').textContent + ')');
}

const byId = id => document.getElementById(id);
const caption = () => byId('caption').textContent;
const key = name => document.body.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true }));
const frame = () => new Promise(done => requestAnimationFrame(done));
const later = ms => new Promise(done => setTimeout(done, ms));
const squares = () => byId('cluster').querySelectorAll('svg > g:last-child > rect').length;

/* Steps until the caption has the words. */
function stepTo(words) {
  key('Home');
  for (let i = 0; i < 2000 && !caption().includes(words) && !caption().includes('complete'); i++)
    byId('next').click();
  return caption().includes(words);
}

/* The widths of the memory bars at a part of the step, against a scan of the data. */
function barsAreRight(part) {
  const data = JSON.parse(byId('data').textContent), t = data.end * part / 1000;
  const reserved = data.ranks.map(r => r.reserved.reduce((a, b) => a + b));
  byId('seek').value = part;
  byId('seek').dispatchEvent(new Event('input'));
  return data.ranks.every((r, i) => {
    const bytes = data.kinds.map(() => 0), bars = byId('cluster').querySelectorAll('.rank')[i].querySelectorAll('rect[height="14"]');
    for (let k = 0; k < r.memory.length; k += 3)
      if (r.memory[k + 1] <= t)
        bytes[r.memory[k]] = r.memory[k + 2];
    return bytes.every((b, kind) => Math.abs(bars[kind].getAttribute('width') - 148 * b / Math.max(...reserved)) < 0.01);
  });
}

async function use(expected) {
  const first = caption();
  check('the page begins with a caption', first.length > 10);
  byId('next').click();
  byId('next').click();
  const second = caption(), clock = byId('clock').textContent;
  check('steps change the caption', second !== first);
  check('steps change the time', !clock.startsWith('0.0'));
  key('ArrowRight');
  key('ArrowLeft');
  check('the arrows step forth and back', byId('clock').textContent === clock);
  for (const [words, pieces] of expected) {
    check(`a step has the caption "${words}"`, stepTo(words));
    check(`${pieces} pieces move, not ${squares()}`, squares() === pieces);
  }
  for (const part of [0, 150, 437, 700, 990])
    check(`the memory bars are right at ${part} of 1000`, barsAreRight(part));
  key('Home');
  check('Home goes to the begin', caption() === first);
  byId('speed').value = '4';
  key(' ');
  check('space plays', byId('play').textContent === 'Pause');
  for (let i = 0; i < 900 && caption() === first; i++)
    await frame();
  check('playing changes the caption', caption() !== first);
  check('a playing page does not read out', byId('caption').getAttribute('aria-live') === 'off');
  byId('play').click();
  const paused = byId('clock').textContent;
  await later(1000);
  check('it pauses', byId('clock').textContent === paused && byId('play').textContent === 'Play');
  byId('focus').value = '1';
  byId('focus').dispatchEvent(new Event('change'));
  check('the focus names its rank', byId('memoryTitle').textContent.startsWith('Memory of rank 1') && /[Rr]anks? [^.]*1/.test(caption()));
  const plot = byId('timeline').getBoundingClientRect();
  byId('timeline').dispatchEvent(new MouseEvent('click', { clientX: plot.right - 5, clientY: plot.top + 5, bubbles: true }));
  check('a click on the time axis jumps', Number(byId('seek').value) > 980);
  key('End');
  check('End completes the step', caption() === 'The step is complete.');
  check('nothing is wider than the window', document.documentElement.scrollWidth <= innerWidth);
  check('every control has a name', [...document.querySelectorAll('button, select, input')].every(e =>
    e.getAttribute('aria-label') || e.textContent.trim() && e.tagName === 'BUTTON' || e.closest('label')));
}

addEventListener('load', () => use(window.expected).catch(e => failures.push('an error: ' + e)).finally(() =>
  console.log('verdict: ' + (failures.length ? 'FAILED: ' + failures.join('; ') : `passed: ${found.length} checks`))));
