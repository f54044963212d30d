/*
 * Descriptors 0, 1 and 2: which files are behind them at which time. Nothing else of the driver stays open while user
 * code runs, so user code may close, replace or fill any descriptor; the next change puts the right files back.
 *
 * Everything is opened by path. `dup2` replaces a descriptor in one step, so a thread that writes at that moment writes
 * to the old file or to the new one, never to a wrong one.
 */

"use strict";

const O_RDONLY = 0;
const O_WRONLY = 1;
const POLLOUT = 4;
const F_DUPFD_CLOEXEC = 1030;
const FIRST_COPY = 10;
const MOMENT_MS = 1000;

exports.makeDescriptors = function (runtime) {
  function put(path, flags, target) {
    const fd = runtime.openSync(path, flags);
    if (fd === target) {
      // User code had closed it, and the lowest free number is what it was. Open() set close-on-exec, which children
      // must not see: move it away and back.
      const other = runtime.openSync(path, flags);
      runtime.dup2(other, target);
      runtime.closeSync(other);
      return;
    }
    runtime.dup2(fd, target);
    runtime.closeSync(fd);
  }

  /** The three of an execution: `folder` is E of the contract. */
  function attach(folder, hasStdin) {
    put(`${folder}/out`, O_WRONLY, 1);
    put(`${folder}/err`, O_WRONLY, 2);
    put(hasStdin ? `${folder}/in` : "/dev/null", O_RDONLY, 0);
  }

  /** The three of the time between executions. */
  function detach() {
    put("/dev/null", O_RDONLY, 0);
    put(`${runtime.dir}/idle.out`, O_WRONLY, 1);
    put(`${runtime.dir}/idle.err`, O_WRONLY, 2);
  }

  /** Nothing that is written from here on is kept. */
  function silence() {
    put("/dev/null", O_RDONLY, 0);
    put("/dev/null", O_WRONLY, 1);
    put("/dev/null", O_WRONLY, 2);
  }

  /** Another descriptor for what is behind descriptor 0 now, closed in children. */
  function copyOfStdin() {
    return runtime.fcntl(0, F_DUPFD_CLOEXEC, FIRST_COPY);
  }

  /** Writes all of `bytes`, also when a child has made the pipe non-blocking. False: the other end is gone. */
  function writeAll(fd, bytes) {
    for (let at = 0; at < bytes.length; ) {
      try {
        at += runtime.writeSync(fd, bytes, at, bytes.length - at);
      } catch (error) {
        if (error.code === "EAGAIN") runtime.poll(new runtime.Int32Array([fd, POLLOUT]), 1, MOMENT_MS);
        else if (error.code !== "EINTR") return false;
      }
    }
    return true;
  }

  /** Opens a FIFO of the agent's, writes to it and closes it. */
  function send(path, pieces) {
    const fd = runtime.openSync(path, O_WRONLY);
    for (const piece of pieces) writeAll(fd, piece);
    runtime.closeSync(fd);
  }

  return { attach, detach, silence, copyOfStdin, writeAll, send };
};
