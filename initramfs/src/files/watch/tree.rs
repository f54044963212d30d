//! The folders that one watch looks at, and the paths that they have.
//!
//! The kernel names a folder by a number (`wd`), and its events name entries within it. A path is put together from the
//! names on the way up. User code may move folders around faster than events about it are read, so the picture can be
//! behind; it never holds a circle, and what has no way up to the watched folder has no path.

use std::collections::BTreeMap;

use hayfork_protocol::limits::MAX_PATH;

/// Most names on the way up: more do not fit a path.
const MAX_DEPTH: usize = MAX_PATH / 2 + 1;

#[derive(Debug)]
struct Node {
    parent: i32,
    name: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Tree {
    root: i32,
    nodes: BTreeMap<i32, Node>,
    /// From folder and name to the folder of that name.
    children: BTreeMap<(i32, Vec<u8>), i32>,
}

/// What became of a folder that was put somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// It is new.
    New,
    /// It was known, here or elsewhere.
    Known,
    /// It cannot be there: it would be below itself. The picture is behind.
    Refused,
}

impl Tree {
    /// The watched folder alone.
    pub fn new(root: i32) -> Self {
        Self { root, nodes: BTreeMap::new(), children: BTreeMap::new() }
    }

    /// Folders in it.
    pub fn len(&self) -> usize {
        self.nodes.len() + 1
    }

    /// Never: the watched folder is in it.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether a folder is known.
    pub fn contains(&self, wd: i32) -> bool {
        wd == self.root || self.nodes.contains_key(&wd)
    }

    /// All folders but the watched one itself.
    pub fn folders(&self) -> impl Iterator<Item = i32> + '_ {
        self.nodes.keys().copied()
    }

    /// The folder of that name in another one.
    pub fn child(&self, parent: i32, name: &[u8]) -> Option<i32> {
        self.children.get(&(parent, name.to_vec())).copied()
    }

    /// Where a folder is.
    pub fn place(&self, wd: i32) -> Option<(i32, &[u8])> {
        self.nodes.get(&wd).map(|node| (node.parent, node.name.as_slice()))
    }

    /// The path of an entry of a folder, or of the folder itself if `name` is empty, relative to the watched one. `None` if
    /// the folder is not known, or the path longer than the kernel takes.
    pub fn path(&self, wd: i32, name: &[u8]) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = Vec::new();
        if !name.is_empty() {
            names.push(name);
        }
        let mut at = wd;
        while at != self.root {
            let node = self.nodes.get(&at)?;
            names.push(&node.name);
            if names.len() > MAX_DEPTH {
                return None;
            }
            at = node.parent;
        }
        names.reverse();
        let path = names.join(&b'/');
        (path.len() <= MAX_PATH).then_some(path)
    }

    /// Puts a folder there, in place of another one of that name.
    pub fn put(&mut self, wd: i32, parent: i32, name: &[u8]) -> Placed {
        if self.is_at_or_below(parent, wd) {
            return Placed::Refused;
        }
        let known = self.unlink(wd);
        self.nodes.insert(wd, Node { parent, name: name.to_vec() });
        self.children.insert((parent, name.to_vec()), wd);
        if known { Placed::Known } else { Placed::New }
    }

    /// Whether a folder is `above` itself or below it. Of something deeper than any path, it is said to be.
    pub fn is_at_or_below(&self, mut at: i32, above: i32) -> bool {
        for _ in 0..=MAX_DEPTH {
            if at == above {
                return true;
            }
            let Some(node) = self.nodes.get(&at) else { return false };
            at = node.parent;
        }
        true
    }

    /// Forgets a folder; those below it have no path from here on.
    pub fn forget(&mut self, wd: i32) {
        self.unlink(wd);
    }

    fn unlink(&mut self, wd: i32) -> bool {
        let Some(node) = self.nodes.remove(&wd) else { return false };
        let place = (node.parent, node.name);
        // Another one may have its place by now.
        if self.children.get(&place) == Some(&wd) {
            self.children.remove(&place);
        }
        true
    }

    /// Forgets a folder and those below it, and returns them.
    pub fn prune(&mut self, wd: i32) -> Vec<i32> {
        let mut gone = Vec::new();
        let mut pending = vec![wd];
        while let Some(next) = pending.pop() {
            pending.extend(
                self.children
                    .range((next, Vec::new())..)
                    .take_while(|((parent, _), _)| *parent == next)
                    .map(|(_, child)| *child),
            );
            if self.unlink(next) {
                gone.push(next);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tree: &Tree, wd: i32, name: &str) -> Option<String> {
        tree.path(wd, name.as_bytes()).map(|path| String::from_utf8(path).unwrap())
    }

    #[test]
    fn paths_follow_folders_that_are_moved() {
        let mut tree = Tree::new(1);
        assert_eq!(text(&tree, 1, ""), Some(String::new()));
        assert_eq!(tree.put(2, 1, b"a"), Placed::New);
        assert_eq!(tree.put(3, 2, b"b"), Placed::New);
        assert_eq!(text(&tree, 3, "f").unwrap(), "a/b/f");
        assert_eq!(tree.put(2, 1, b"c"), Placed::Known);
        assert_eq!(text(&tree, 3, "").unwrap(), "c/b");
        assert_eq!((tree.child(1, b"a"), tree.child(1, b"c")), (None, Some(2)));
        assert_eq!(tree.put(3, 1, b"b"), Placed::Known);
        assert_eq!(text(&tree, 3, "f").unwrap(), "b/f");
        assert_eq!(tree.len(), 3);
    }

    #[test]
    fn a_folder_that_takes_anothers_place_outlives_it() {
        let mut tree = Tree::new(1);
        tree.put(2, 1, b"a");
        tree.put(3, 1, b"a");
        tree.forget(2);
        assert_eq!(tree.child(1, b"a"), Some(3));
        assert_eq!(text(&tree, 2, "x"), None);
    }

    #[test]
    fn nothing_is_put_below_itself() {
        let mut tree = Tree::new(1);
        tree.put(2, 1, b"a");
        tree.put(3, 2, b"b");
        assert_eq!(tree.put(2, 3, b"x"), Placed::Refused);
        assert_eq!(tree.put(2, 2, b"x"), Placed::Refused);
        assert_eq!(tree.put(1, 3, b"x"), Placed::Refused);
        assert_eq!(text(&tree, 3, "").unwrap(), "a/b");
    }

    #[test]
    fn what_is_below_goes_with_a_folder_and_what_is_beside_stays() {
        let mut tree = Tree::new(1);
        for (wd, parent, name) in [(2, 1, "a"), (3, 2, "b"), (4, 3, "c"), (5, 1, "d"), (6, 2, "e")] {
            tree.put(wd, parent, name.as_bytes());
        }
        let mut gone = tree.prune(2);
        gone.sort_unstable();
        assert_eq!(gone, [2, 3, 4, 6]);
        assert_eq!(tree.folders().collect::<Vec<_>>(), [5]);
        assert!(tree.children.len() == 1 && tree.prune(2).is_empty());
        // Below one that was forgotten alone there is no path.
        tree.put(7, 5, b"f");
        tree.forget(5);
        assert_eq!(text(&tree, 7, "x"), None);
    }

    #[test]
    fn a_path_is_as_long_as_the_kernels() {
        let mut tree = Tree::new(0);
        for wd in 1..=MAX_DEPTH {
            let wd = i32::try_from(wd).unwrap();
            tree.put(wd, wd - 1, b"x");
        }
        let deep = i32::try_from(MAX_PATH / 2).unwrap();
        assert_eq!(tree.path(deep, b"").unwrap().len(), MAX_PATH - 2);
        assert_eq!(tree.path(deep, b"x").unwrap().len(), MAX_PATH);
        assert_eq!(tree.path(deep, b"xy"), None);
    }
}
