//! Reading Kconfig files: our fragment and forbidden list strictly, a finished `.config` leniently.
//!
//! The fragment is a promise that the build checks line by line, so a line in it that means nothing is an error: an unknown
//! form, a symbol named twice. A `.config` written by Kconfig has only two kinds of lines that matter and any comment.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

/// What a line says of a symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// `CONFIG_X=value`; strings keep their quotes.
    Value(String),
    /// `# CONFIG_X is not set`.
    NotSet,
}

impl Setting {
    /// The line of a fragment or a `.config` that says this of `symbol`, with its end.
    pub(crate) fn line(&self, symbol: &str) -> String {
        match self {
            Self::Value(value) => format!("{symbol}={value}\n"),
            Self::NotSet => format!("# {symbol} is not set\n"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.write_str(value),
            Self::NotSet => f.write_str("not set"),
        }
    }
}

/// A line of the fragment or of the forbidden list that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseError {
    /// Neither a setting, a comment nor blank.
    #[error("line {line}: `{text}` is neither CONFIG_X=value, `# CONFIG_X is not set` nor a comment")]
    Form {
        /// Counted from 1.
        line: usize,
        /// The line as it stands.
        text: String,
    },
    /// A symbol named a second time, with whatever value.
    #[error("line {line}: {symbol} was already given in line {first}; keep one of the two")]
    Twice {
        /// Counted from 1.
        line: usize,
        /// Where it stood first.
        first: usize,
        /// The symbol, with its `CONFIG_` prefix.
        symbol: String,
    },
}

/// Parses a fragment. Symbols keep their `CONFIG_` prefix.
///
/// # Errors
/// A line of unknown form, or a symbol named twice.
pub fn parse_fragment(text: &str) -> Result<BTreeMap<String, Setting>, ParseError> {
    let mut found: BTreeMap<String, (usize, Setting)> = BTreeMap::new();
    for (line, text) in numbered(text) {
        let Some((symbol, setting)) = setting(text) else {
            // A comment that almost says "is not set" would be a silently lost wish.
            if text.is_empty() || (text.starts_with('#') && !text.starts_with("# CONFIG_")) {
                continue;
            }
            return Err(ParseError::Form { line, text: text.to_owned() });
        };
        if let Some((first, _)) = found.get(symbol) {
            return Err(ParseError::Twice { line, first: *first, symbol: symbol.to_owned() });
        }
        found.insert(symbol.to_owned(), (line, setting));
    }
    Ok(found.into_iter().map(|(symbol, (_, setting))| (symbol, setting)).collect())
}

/// Parses a list of symbols that must stay out, in the order of the list.
///
/// # Errors
/// A line that is no symbol, or a symbol named twice.
pub fn parse_forbidden(text: &str) -> Result<Vec<String>, ParseError> {
    let mut found: Vec<(usize, String)> = Vec::new();
    for (line, text) in numbered(text) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if !is_symbol(text) {
            return Err(ParseError::Form { line, text: text.to_owned() });
        }
        if let Some((first, _)) = found.iter().find(|(_, symbol)| symbol == text) {
            return Err(ParseError::Twice { line, first: *first, symbol: text.to_owned() });
        }
        found.push((line, text.to_owned()));
    }
    Ok(found.into_iter().map(|(_, symbol)| symbol).collect())
}

/// Reads a `.config` that Kconfig wrote: what it does not mention is not there. Never fails; other lines are comments.
pub fn parse_config(text: &str) -> BTreeMap<String, Setting> {
    numbered(text)
        .filter_map(|(_, text)| setting(text))
        .map(|(symbol, setting)| (symbol.to_owned(), setting))
        .collect()
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end()))
}

fn setting(line: &str) -> Option<(&str, Setting)> {
    if let Some(symbol) = line.strip_prefix("# ").and_then(|rest| rest.strip_suffix(" is not set")) {
        return is_symbol(symbol).then_some((symbol, Setting::NotSet));
    }
    let (symbol, value) = line.split_once('=')?;
    (is_symbol(symbol) && !value.is_empty()).then(|| (symbol, Setting::Value(value.to_owned())))
}

fn is_symbol(text: &str) -> bool {
    text.strip_prefix("CONFIG_").is_some_and(|name| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}
