/*
 * The names that user code declares at top level, and where they live.
 *
 * Ordinary names are properties of the global object, writable and configurable: every later text and every closure uses
 * the same variable. Names that the runtime's global object had before user code came (`crypto`, `setTimeout`, `URL`)
 * live in the shadow scope instead once user code declares them; see transform.js.
 *
 * A name imported from an ES module is an accessor that reads the module's export, so it stays live; declaring the name
 * again replaces the accessor.
 */

"use strict";

exports.makeBindings = function (runtime, user) {
  const pristine = new Set(runtime.globalNames);
  const shadow = { __proto__: null };
  /** Our accessors, to tell them from those that user code defines. */
  const live = new WeakSet();
  // Scripts reach the shadow scope by this property of the global object, which removes itself when it is read.
  const key = `$hayfork${Math.random().toString(36).slice(2)}`;

  /** Stands for a constant where user code assigns to one. */
  const readOnly = `${key}c`;
  user.forbidAssignment(readOnly);
  const constants = new Set();

  const home = (name) => (pristine.has(name) ? shadow : runtime.global);

  function isOurs(descriptor) {
    return descriptor?.get !== undefined && live.has(descriptor.get);
  }

  function variable(object, name) {
    Reflect.defineProperty(object, name, { value: undefined, writable: true, enumerable: true, configurable: true });
  }

  /** Makes the variables of a plan: those that are there keep their value until the code assigns to them. */
  function declare(plan) {
    for (const [name, kind] of plan.declared) {
      const object = home(name);
      const descriptor = Reflect.getOwnPropertyDescriptor(object, name);
      if (isOurs(descriptor)) Reflect.deleteProperty(object, name);
      if (kind === "const") constants.add(name);
      else constants.delete(name);
      const byScript = !plan.wrapped && (kind === "var" || kind === "function");
      if (!byScript && (descriptor === undefined || isOurs(descriptor))) variable(object, name);
    }
    if (plan.meta) shadow[plan.meta] = user.importMeta();
  }

  /** Binds what an import statement names. `exports` is the module's namespace, `imported` null for all of it. */
  function bindImport(local, exports, imported, isBuiltin) {
    const object = home(local);
    const value = imported === null ? exports : exports[imported];
    if (imported !== null && !isBuiltin) {
      const descriptor = user.liveBinding(exports, imported);
      live.add(descriptor.get);
      if (Reflect.defineProperty(object, local, descriptor)) return;
    }
    object[local] = value;
  }

  /** To be called right before a script that has `with` is run. */
  function open() {
    Reflect.defineProperty(runtime.global, key, {
      configurable: true,
      get() {
        Reflect.deleteProperty(runtime.global, key);
        return shadow;
      },
    });
  }

  return {
    key,
    readOnly,
    isConstant: (name) => constants.has(name),
    isGlobal: (name) => pristine.has(name),
    isShadowed: (name) => name in shadow,
    declare,
    bindImport,
    open,
  };
};
