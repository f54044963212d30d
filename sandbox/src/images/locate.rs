//! Where an image set is looked for.
//!
//! The first of these that is given or present decides:
//! 1. the directory that the caller names;
//! 2. the environment variable `HAYFORK_IMAGES_DIR`;
//! 3. the image package that a language binding found beside itself;
//! 4. `current` in the cache, `$XDG_CACHE_HOME/hayfork` or `~/.cache/hayfork`.
//!
//! A directory that somebody named (1 and 2) is never passed over: if it is no set, that is an
//! error, since using other images than those asked for would be worse than using none.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{ImageSet, ImagesError, manifest};

/// Environment variable that names a set's directory.
pub const ENVIRONMENT: &str = "HAYFORK_IMAGES_DIR";

/// Name of the link in the cache that points to the newest set.
pub const CURRENT: &str = "current";

/// The places to look at, collected once. [`Lookup::from_environment`] fills in what the process's
/// environment says; the other two are the caller's.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// The directory that the caller names.
    pub explicit: Option<PathBuf>,
    /// Value of `HAYFORK_IMAGES_DIR`.
    pub environment: Option<PathBuf>,
    /// Directory of an installed image package, if there is one.
    pub package: Option<PathBuf>,
    /// The cache directory that holds `current`.
    pub cache: Option<PathBuf>,
}

impl Lookup {
    /// A lookup by environment and cache.
    pub fn from_environment() -> Self {
        Self {
            environment: env::var_os(ENVIRONMENT).filter(|value| !value.is_empty()).map(PathBuf::from),
            cache: cache_directory(),
            ..Self::default()
        }
    }

    /// Finds and opens the set.
    ///
    /// # Errors
    /// [`ImagesError::NotASet`] for a named directory without manifest, [`ImagesError::NotFound`] if
    /// no place has one, and what [`ImageSet::open`] reports about the one found.
    pub fn open(&self) -> Result<ImageSet, ImagesError> {
        let named =
            [(&self.explicit, "given as images directory"), (&self.environment, "from HAYFORK_IMAGES_DIR")];
        for (directory, origin) in named {
            if let Some(directory) = directory {
                if !is_set(directory) {
                    return Err(ImagesError::NotASet { directory: directory.clone(), origin });
                }
                return ImageSet::open(directory);
            }
        }
        let mut searched = Vec::new();
        let found =
            self.package.clone().into_iter().chain(self.cache.iter().map(|cache| cache.join(CURRENT)));
        for directory in found {
            if is_set(&directory) {
                return ImageSet::open(&directory);
            }
            searched.push(directory);
        }
        Err(ImagesError::NotFound { searched })
    }
}

/// The cache directory of hayfork: `$XDG_CACHE_HOME/hayfork`, else `~/.cache/hayfork`. `None` if
/// neither variable holds an absolute path (the XDG specification says to ignore relative ones).
pub fn cache_directory() -> Option<PathBuf> {
    cache_directory_from(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))
}

pub(super) fn cache_directory_from(
    xdg_cache_home: Option<OsString>,
    home: Option<OsString>,
) -> Option<PathBuf> {
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(xdg_cache_home).or_else(|| absolute(home).map(|home| home.join(".cache")))?;
    Some(base.join("hayfork"))
}

fn is_set(directory: &Path) -> bool {
    directory.join(manifest::FILE_NAME).is_file()
}
