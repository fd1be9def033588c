//! Names of the keys at the server.

/// Longest consumer and longest key that stand in a name as they are.
const READABLE: (usize, usize) = (64, 128);

/// Names under one prefix.
#[derive(Debug)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    /// Refuses a prefix that cannot be told from what follows, or that cannot be typed.
    pub(super) fn new(prefix: &str) -> Result<Self, String> {
        if prefix.is_empty() || !prefix.chars().all(|letter| letter.is_ascii_graphic()) {
            let found = prefix.escape_debug();
            return Err(format!(
                "the prefix is `{found}`; give it at least one letter, in ASCII and without spaces"
            ));
        }
        Ok(Self { prefix: prefix.to_owned() })
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Name of the key by which handles know that they share a server.
    pub(super) fn identity(&self) -> Vec<u8> {
        format!("{}:idem#id", self.prefix).into_bytes()
    }

    /// Name of an idempotency key. Braces never stand in it, since a publisher would choose the node of a cluster by them;
    /// the prefix may have some.
    pub(super) fn entry(&self, consumer: &str, key: &[u8]) -> Vec<u8> {
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"{}".contains(byte);
        let fits = consumer.len() <= READABLE.0 && key.len() <= READABLE.1;
        // The first colon after the consumer ends it.
        if fits
            && consumer.bytes().all(|byte| is_plain(&byte) && byte != b':')
            && key.iter().all(is_plain)
        {
            let mut name = format!("{}:idem:{consumer}:", self.prefix).into_bytes();
            name.extend(key);
            return name;
        }
        // The length tells where the consumer ends, so that no two pairs of consumer and key have one hash.
        let mut hash = blake3::Hasher::new();
        hash.update(&(consumer.len() as u64).to_le_bytes());
        hash.update(consumer.as_bytes());
        hash.update(key);
        format!("{}:idem#{}", self.prefix, hash.finalize().to_hex()).into_bytes()
    }

    /// Pattern that all names match.
    pub(super) fn pattern(&self) -> String {
        let mut pattern = String::new();
        for letter in self.prefix.chars() {
            // A prefix with such a letter would match keys of others, which a purge looks at.
            if r"*?[]\^".contains(letter) {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern + ":idem[:#]*"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(consumer: &str, key: &[u8]) -> String {
        let names = Names::new("dlq").unwrap();
        String::from_utf8(names.entry(consumer, key)).unwrap()
    }

    #[test]
    fn plain_keys_can_be_read_and_others_are_hashed() {
        assert_eq!(name("payments", b"order-7"), "dlq:idem:payments:order-7");
        assert_eq!(name("payments", b"a:b"), "dlq:idem:payments:a:b");
        for (consumer, key) in [
            ("a:b", &b"c"[..]),
            ("a", b"\0"),
            ("a", b"{b}"),
            ("a", &[b'x'; 129]),
            ("{a}", b"b"),
            ("a b", b"c"),
        ] {
            let name = name(consumer, key);
            assert!(name.starts_with("dlq:idem#") && name.len() == 9 + 64, "{name}");
        }
        let pairs = [("a", "b:c"), ("a:b", "c"), ("", "a:b:c"), ("a:b:c", ""), ("a", ""), ("", "")];
        let names: std::collections::BTreeSet<_> =
            pairs.iter().map(|(consumer, key)| name(consumer, key.as_bytes())).collect();
        assert_eq!(names.len(), pairs.len());
    }

    #[test]
    fn prefixes_are_checked_and_escaped() {
        assert!(Names::new("").is_err());
        assert!(Names::new("a b").unwrap_err().contains("`a b`"));
        assert_eq!(Names::new("{a}*[b]").unwrap().pattern(), r"{a}\*\[b\]:idem[:#]*");
    }
}
