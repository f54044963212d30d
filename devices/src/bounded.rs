//! Lists of saved state that are read only up to a length.
//!
//! In a compact form an empty list, or a small number, is one byte, and in memory some dozens. So a few bytes of a sender that is
//! not trusted could take many times their number in memory before anybody has counted what they say. Here the count is looked
//! at as it is read.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Elements that are made room for before they are there, in bytes.
const AHEAD: usize = 64 << 10;

/// Reads a list of at most `MOST` elements; for `#[serde(deserialize_with = "…")]`.
///
/// # Errors
/// There are more, or one of them is none.
pub fn at_most<'de, const MOST: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_seq(List::<MOST, T>(PhantomData))
}

struct List<const MOST: usize, T>(PhantomData<T>);

impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for List<MOST, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MOST} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let count = list.size_hint().unwrap_or(0);
        if count > MOST {
            return Err(A::Error::invalid_length(count, &self));
        }
        let mut all = Vec::with_capacity(count.min(AHEAD / size_of::<T>().max(1)));
        while let Some(element) = list.next_element()? {
            if all.len() == MOST {
                return Err(A::Error::invalid_length(MOST + 1, &self));
            }
            all.push(element);
        }
        Ok(all)
    }
}
