//! Did the configuration come out as it was asked for?
//!
//! Kconfig drops a wish without a word when a dependency is missing, and turns on what something else selects. Both change
//! what the guest can do or be attacked by, so both stop the build.

use std::collections::BTreeMap;
use std::fmt;

use crate::fragment::Setting;

/// One option that is not as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deviation {
    /// A line of the fragment that did not survive.
    Wanted {
        /// The symbol, with its `CONFIG_` prefix.
        symbol: String,
        /// What the fragment says.
        wanted: Setting,
        /// What the final configuration says; nothing when it does not mention the symbol.
        found: Option<Setting>,
    },
    /// A forbidden option that is on.
    Forbidden {
        /// The symbol, with its `CONFIG_` prefix.
        symbol: String,
        /// Its value in the final configuration.
        found: String,
    },
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wanted { symbol, wanted, found: Some(found) } => {
                write!(f, "{symbol}: the fragment asks for {wanted}, the configuration has {found}")
            }
            Self::Wanted { symbol, wanted, found: None } => write!(
                f,
                "{symbol}: the fragment asks for {wanted}, the configuration has no such option (renamed, or a dependency is off)"
            ),
            Self::Forbidden { symbol, found } => {
                write!(f, "{symbol}: is forbidden, but something selected it (={found})")
            }
        }
    }
}

/// Compares a final configuration with the fragment and the forbidden list. Empty means: as asked for.
///
/// "Not set" and "not mentioned" are the same thing to Kconfig and are here: an option whose menu is closed is off. An
/// unset string is not the same as an empty one.
pub fn check(
    wanted: &BTreeMap<String, Setting>,
    forbidden: &[String],
    config: &BTreeMap<String, Setting>,
) -> Vec<Deviation> {
    let mut deviations = Vec::new();
    for (symbol, setting) in wanted {
        let found = config.get(symbol);
        let survived = match setting {
            Setting::NotSet => !matches!(found, Some(Setting::Value(_))),
            Setting::Value(_) => found == Some(setting),
        };
        if !survived {
            deviations.push(Deviation::Wanted {
                symbol: symbol.clone(),
                wanted: setting.clone(),
                found: found.cloned(),
            });
        }
    }
    for symbol in forbidden {
        if let Some(Setting::Value(value)) = config.get(symbol) {
            deviations.push(Deviation::Forbidden { symbol: symbol.clone(), found: value.clone() });
        }
    }
    deviations
}
