/// Returns the partition of a record: by its key as Java's producers do, so that records of one key stay together;
/// without a key by `else_by`.
pub(crate) fn partition_for(key: Option<&[u8]>, else_by: &[u8], partitions: i32) -> i32 {
    // Java's producers clear the sign in this way too.
    let hash = murmur2(key.unwrap_or(else_by)) & 0x7fff_ffff;
    (hash % partitions.max(1).cast_unsigned()).cast_signed()
}

/// The hash of Kafka's producers: `MurmurHash2` with their seed.
fn murmur2(bytes: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ mixed.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values are those of Kafka's own clients for these keys.
    #[test]
    fn the_hash_is_that_of_kafka() {
        for (key, hash) in [
            ("kafka", 0xd067_cf64_u32),
            ("giberish123456789", 0x8f55_2b0c),
            ("", 0x106e_08d9),
            ("21", -973_932_308_i32 as u32),
            ("foobar", -790_332_482_i32 as u32),
            ("a-little-bit-long-string", -985_981_536_i32 as u32),
            ("a-little-bit-longer-string", -1_486_304_829_i32 as u32),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971_i32 as u32),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key:?}");
        }
    }

    #[test]
    fn a_key_decides_and_an_empty_one_is_a_key() {
        let by_key = partition_for(Some(b"kafka"), b"x", 7);
        assert_eq!(by_key, (0xd067_cf64_u32 & 0x7fff_ffff).cast_signed() % 7);
        assert_eq!(partition_for(None, b"kafka", 7), by_key);
        assert_eq!(partition_for(Some(b""), b"kafka", 7), partition_for(Some(b""), b"other", 7));
        assert_eq!(partition_for(Some(b"kafka"), b"", 0), 0, "what is unknown yet is the first");
    }
}
