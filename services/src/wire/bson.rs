//! BSON for commands and their answers: what JSON can say, and to read a little more.

use serde_json::{Map, Number, Value};

/// Writes a document of these fields, in this order.
pub(super) fn document<'a>(fields: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        element(&mut body, name, value);
    }
    let length = i32::try_from(body.len() + 5).unwrap_or(i32::MAX);
    let mut document = length.to_le_bytes().to_vec();
    document.extend(body);
    document.push(0);
    document
}

fn element(out: &mut Vec<u8>, name: &str, value: &Value) {
    let mut put = |kind: u8, bytes: &[u8]| {
        out.push(kind);
        out.extend(name.as_bytes());
        out.push(0);
        out.extend(bytes);
    };
    match value {
        Value::Null => put(0x0a, &[]),
        Value::Bool(value) => put(0x08, &[u8::from(*value)]),
        Value::Number(number) => {
            match number.as_i64().map(|number| (number, i32::try_from(number))) {
                Some((_, Ok(number))) => put(0x10, &number.to_le_bytes()),
                Some((number, Err(_))) => put(0x12, &number.to_le_bytes()),
                None => put(0x01, &number.as_f64().unwrap_or(f64::NAN).to_le_bytes()),
            }
        }
        Value::String(text) => {
            let mut bytes =
                i32::try_from(text.len() + 1).unwrap_or(i32::MAX).to_le_bytes().to_vec();
            bytes.extend(text.as_bytes());
            bytes.push(0);
            put(0x02, &bytes);
        }
        Value::Array(items) => {
            let names: Vec<_> = (0..items.len()).map(|index| index.to_string()).collect();
            put(0x04, &document(names.iter().map(String::as_str).zip(items)));
        }
        Value::Object(fields) => {
            put(0x03, &document(fields.iter().map(|(name, value)| (name.as_str(), value))));
        }
    }
}

/// Reads the document at the start of `bytes`. Bytes and ids are read as hexadecimal text, times as milliseconds; `None` for
/// what is cut off or unknown.
pub(super) fn parse(bytes: &[u8]) -> Option<Value> {
    Reader { rest: bytes }.document().map(Value::Object)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(i32::from_le_bytes(self.array()?)).ok()
    }

    fn name(&mut self) -> Option<String> {
        let end = self.rest.iter().position(|&byte| byte == 0)?;
        let name = self.take(end)?;
        self.take(1)?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    fn document(&mut self) -> Option<Map<String, Value>> {
        let length = self.length()?.checked_sub(4)?;
        let mut inner = Reader { rest: self.take(length)? };
        let mut fields = Map::new();
        loop {
            let kind = inner.take(1)?[0];
            if kind == 0 {
                return Some(fields);
            }
            let name = inner.name()?;
            fields.insert(name, inner.value(kind)?);
        }
    }

    fn value(&mut self, kind: u8) -> Option<Value> {
        Some(match kind {
            0x01 => Number::from_f64(f64::from_le_bytes(self.array()?))
                .map_or(Value::Null, Value::Number),
            0x02 => {
                let length = self.length()?;
                let text = self.take(length)?.split_last()?.1;
                Value::String(String::from_utf8_lossy(text).into_owned())
            }
            0x03 => Value::Object(self.document()?),
            0x04 => Value::Array(self.document()?.into_iter().map(|(_, value)| value).collect()),
            0x05 => {
                let length = self.length()?;
                self.take(1)?;
                Value::String(hexadecimal(self.take(length)?))
            }
            0x07 => Value::String(hexadecimal(self.take(12)?)),
            0x08 => Value::Bool(self.array::<1>()? != [0]),
            0x0a => Value::Null,
            0x10 => i32::from_le_bytes(self.array()?).into(),
            0x09 | 0x11 | 0x12 => i64::from_le_bytes(self.array()?).into(),
            _ => return None,
        })
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{document, parse};

    #[test]
    fn documents_are_read_as_they_were_written() {
        let value = json!({
            "a": [1, -2, 5_000_000_000_i64, 0.5], "b": {"c": "é", "d": null}, "e": [true, false], "f": {}, "g": [], "h": "",
        });
        let fields = value.as_object().unwrap();
        let bytes = document(fields.iter().map(|(name, value)| (name.as_str(), value)));
        assert_eq!(parse(&bytes).unwrap(), value);
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), None, "cut off at {end}");
        }
    }

    #[test]
    fn fields_keep_their_order() {
        let bytes = document([("z", &json!(1)), ("a", &json!(2))]);
        assert_eq!(bytes, b"\x13\0\0\0\x10z\0\x01\0\0\0\x10a\0\x02\0\0\0\0");
    }
}
