/*
 * A small CommonJS loader for the driver's realm. The script's value is a function that is called once with what the
 * loader needs of the ordinary realm and with the paths of the npm packages; it returns `load(path)`. A package whose path is
 * null is an empty module: something requires it but what we call of that does not use it.
 *
 * Bun's own `require` cannot be used: it would make the modules in the ordinary realm, on prototypes that user code can
 * change. Everything here is private to this realm, so that a package first needed later still loads untouched.
 */

(function (natives, packages) {
  "use strict";

  const modules = new Map();

  function read(path) {
    return natives.readFileSync(path, "utf8");
  }

  /** The file that `name` means in a module of the folder `folder`, and its text. */
  function find(folder, name) {
    if (!name.startsWith(".")) {
      if (!Object.hasOwn(packages, name)) throw new Error(`the driver has no package "${name}"`);
      return packages[name] === null ? [name, ""] : [packages[name], read(packages[name])];
    }
    const parts = folder.split("/");
    for (const part of name.split("/")) {
      if (part === "..") parts.pop();
      else if (part !== ".") parts.push(part);
    }
    const path = parts.join("/");
    if (/\.c?js$/.test(path)) return [path, read(path)];
    try {
      return [`${path}.js`, read(`${path}.js`)];
    } catch {
      return [`${path}/index.js`, read(`${path}/index.js`)];
    }
  }

  function load(path, text = read(path)) {
    const known = modules.get(path);
    if (known) return known.exports;
    const module = { exports: {} };
    modules.set(path, module);
    const source = `(function (exports, require, module) {${text}\n})`;
    const script = new natives.Script(source, { filename: path });
    const folder = path.slice(0, path.lastIndexOf("/"));
    const require = (name) => load(...find(folder, name));
    Reflect.apply(natives.runInContext, script, [natives.context])(module.exports, require, module);
    return module.exports;
  }

  return load;
});
