//! Logs whose lines are JSON objects: [`read`].
//!
//! It reads the members that are asked for and skips the others. Invariant: a member is a
//! text, a number or a boolean; another value counts as missing.

use std::{borrow::Cow, fmt};

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

type Slots<'s, 'l> = &'s mut [Option<Cow<'l, str>>];

/// Puts the members of a line with these names into `slots`.
pub(super) fn read<'l>(line: &'l str, names: &[&str], slots: Slots<'_, 'l>) -> Result<(), String> {
    let mut deserializer = serde_json::Deserializer::from_str(line);
    let read = Members { names, slots }.deserialize(&mut deserializer);
    read.and_then(|()| deserializer.end()).map_err(|error| format!("no JSON object: {error}"))
}

struct Members<'s, 'n, 'l> {
    names: &'n [&'n str],
    slots: Slots<'s, 'l>,
}

impl<'l> DeserializeSeed<'l> for Members<'_, '_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'l> Visitor<'l> for Members<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Scalar(name)) = map.next_key()? {
            let slot = name.and_then(|name| self.names.iter().position(|wanted| *wanted == name));
            match slot {
                Some(slot) => self.slots[slot] = map.next_value::<Scalar<'l>>()?.0,
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}

/// The text of a value; `None` of an array, an object or `null`.
struct Scalar<'l>(Option<Cow<'l, str>>);

impl<'l> Deserialize<'l> for Scalar<'l> {
    fn deserialize<D: Deserializer<'l>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'l> Visitor<'l> for ScalarVisitor {
    type Value = Scalar<'l>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'l str) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(text.into())))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(text.to_owned().into())))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(value.to_string().into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(number.to_string().into())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(number.to_string().into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(number.to_string().into())))
    }

    fn visit_unit<E>(self) -> Result<Scalar<'l>, E> {
        Ok(Scalar(None))
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Scalar<'l>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar(None))
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut items: A) -> Result<Scalar<'l>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar(None))
    }
}
