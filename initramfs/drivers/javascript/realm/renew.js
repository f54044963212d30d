/*
 * Random numbers of its own for a process that was restored from a snapshot, beside others with the same memory. Nothing of
 * it can be seen by user code.
 *
 * Math.random         JavaScriptCore's generator of the ordinary realm has a seed of 32 bits, for which Bun has a function.
 * BoringSSL           (all of `crypto`) gives each thread a generator, which takes from the kernel again after a fork only, or
 *                     after 4096 calls. It notices a fork by a page that the kernel clears in the child (MADV_WIPEONFORK),
 *                     so clearing that page renews all threads. Should it not be found, this thread's calls are used up.
 * Bun                 keeps some KiB of random bytes for randomUUID, randomInt and short requests: they are used up.
 */

"use strict";

const CALLS = 4096 + 1;
/** Requests longer than this go past Bun's supply. */
const PAST_SUPPLY = 1024;
/** Takes Bun's supply (2 KiB at present) more than twice. */
const UUIDS = 512;
const PAGE = 4096;

exports.makeRenewer = function (runtime) {
  /** @param seed hexadecimal digits, at least 16 */
  return function renew(seed) {
    renewBoringSsl();
    for (let i = 0; i < UUIDS; i++) runtime.randomUUID();
    runtime.setRandomSeed(parseInt(seed.slice(0, 8), 16));
    // The first numbers after a seed are far from random. Their number makes up for a seed that is rather short.
    const skipped = 64 + (parseInt(seed.slice(8, 16), 16) & 4095);
    for (let i = 0; i < skipped; i++) runtime.random();
  };

  function renewBoringSsl() {
    const page = findForkPage();
    if (page !== null) runtime.memset(page, 0, 1);
    const bytes = new runtime.Uint8Array(PAST_SUPPLY);
    for (let calls = page === null ? CALLS : 1; calls > 0; calls--) runtime.getRandomValues(bytes);
  }

  /** Address of the one page that a fork clears, or null. */
  function findForkPage() {
    const found = [];
    let range = null;
    for (const line of runtime.decode(runtime.readFileSync("/proc/self/smaps")).split("\n")) {
      const head = /^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0\s*$/.exec(line);
      if (head) range = head.slice(1).map((digits) => parseInt(digits, 16));
      else if (/^[0-9a-f]+-/.test(line)) range = null;
      // `dp` marks the pages of vgetrandom (libc), which the kernel renews by itself.
      else if (range && /^VmFlags:.* wf\b/.test(line) && !/ dp\b/.test(line)) found.push(range);
    }
    return found.length === 1 && found[0][1] - found[0][0] === PAGE ? found[0][0] : null;
  }
};
