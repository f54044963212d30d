//! Sandboxes of named templates that are kept ready.
//!
//! ```text
//!  Engine::keep_warm_from(name, n) ──► wish: name, n ──┬──► line of the file that has the name now ── see crate::pool
//!  another file gets the name, or none has it ─────────┘    (the line of the earlier file is closed)
//! ```
//! A wish is for a name, and a line's stock is of one file: nobody gets what an earlier file of that name held. That a file was
//! replaced by another process is noticed when a sandbox is made of it. A guest of the stock stands as it was kept, and runs
//! nothing before it is handed out: what a template holds may be somebody's session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{FileId, Loaded, header, missing};
use crate::connection::lock;
use crate::engine;
use crate::error::Error;
use crate::named::CloneOptions;
use crate::options::MAX_WARM;
use crate::pool::{Key, Line, Origin};
use crate::start::Shape;

/// How many are to be kept ready of each name, and the line that does so.
#[derive(Default)]
pub(crate) struct Wishes(Mutex<HashMap<String, Wish>>);

struct Wish {
    count: usize,
    /// `None`: there is no file of that name.
    key: Option<Key>,
}

/// The kind of what is made of a file.
pub(super) fn key_of(file: FileId, shape: &Shape) -> Key {
    Key {
        language: shape.language,
        memory_mib: shape.memory_mib,
        vcpus: shape.vcpus,
        origin: Origin::File(file),
    }
}

impl engine::Inner {
    /// See [`Engine::keep_warm_from`](crate::Engine::keep_warm_from).
    pub(crate) fn keep_warm_from(
        self: &Arc<Self>,
        name: &str,
        options: &CloneOptions,
        count: usize,
    ) -> Result<(), Error> {
        if count > MAX_WARM {
            return Err(Error::bad_option(format!(
                "{count} machines are more than the {MAX_WARM} that can be kept ready"
            )));
        }
        if count == 0 {
            if let Some(Wish { key: Some(key), .. }) = lock(&self.wishes.0).remove(name) {
                self.pools.remove(key);
            }
            return Ok(());
        }
        if let Some(wish) = lock(&self.wishes.0).get_mut(name)
            && count < wish.count
        {
            wish.count = count;
            if let Some(key) = wish.key {
                self.keep_ready(key, count);
            }
            return Ok(());
        }
        let (file, saved, language) = header(&self.named_file(name)?, name)?;
        options.agree(language, saved.memory_mib, saved.vcpus)?;
        let key =
            Key { language, memory_mib: saved.memory_mib, vcpus: saved.vcpus, origin: Origin::File(file) };
        {
            let mut wishes = lock(&self.wishes.0);
            let wish = wishes.entry(name.to_owned()).or_insert(Wish { count, key: None });
            wish.count = count;
        }
        self.has_file(name, Some(key));
        Ok(())
    }

    /// What has the name now is of this kind, or there is nothing: the stock is made of that from here on.
    pub(super) fn has_file(self: &Arc<Self>, name: &str, key: Option<Key>) {
        let mut wishes = lock(&self.wishes.0);
        let Some(wish) = wishes.get_mut(name) else { return };
        let earlier = std::mem::replace(&mut wish.key, key);
        if let Some(earlier) = earlier.filter(|earlier| Some(*earlier) != key) {
            self.pools.remove(earlier);
        }
        if let Some(key) = key {
            self.pools.line_of(key, name);
            self.keep_ready(key, wish.count);
        }
    }

    /// What the machines of a line are made of.
    ///
    /// # Errors
    /// It cannot be read, or another file has the name by now; then the line is closed.
    pub(crate) async fn named_of(self: &Arc<Self>, line: &Line, name: &str) -> Result<Loaded, Error> {
        let loaded = self.named(name).await?;
        let key = key_of(loaded.file, &loaded.shape);
        if key == line.key {
            return Ok(loaded);
        }
        self.has_file(name, Some(key));
        Err(missing(name))
    }
}
