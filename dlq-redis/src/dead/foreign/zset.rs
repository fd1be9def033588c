//! Members of a sorted set, page by page, though others add and remove some meanwhile.

use bytes::Bytes;
use redis::Value;

use super::EntryId;
use crate::client::{RedisClient, RedisError, Script, as_array, as_int, as_text};
use crate::consumer::wire::bytes;

/// Members that are fetched at once.
const PAGE: usize = 512;

/// A member and its score, as the server writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: Bytes,
    pub(super) score: Bytes,
}

impl Member {
    /// Its place among the others: the score, in the order of numbers, and a hash of its name.
    pub(super) fn place(&self) -> EntryId {
        let score = std::str::from_utf8(&self.score).ok();
        let score: f64 = score.and_then(|score| score.parse().ok()).unwrap_or(0.0);
        let bits = score.to_bits();
        // The bits of positive numbers are ordered as they are, those of negative ones the other way round.
        let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
        let hash = blake3::hash(&self.name);
        let half = hash.as_bytes()[..8].iter();
        (ordered, half.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// The score of a place.
pub(super) fn score_of((ordered, _): EntryId) -> f64 {
    f64::from_bits(if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered })
}

/// Reads the members after one. KEYS: set. ARGV: score and name of that member, number of members. Answers 1 and the members
/// after it, or 0 and those from its score on where it has gone.
static AFTER: Script = Script::new(
    r"
local rank = redis.call('ZRANK', KEYS[1], ARGV[2])
if rank and redis.call('ZSCORE', KEYS[1], ARGV[2]) == ARGV[1] then
  return {1, redis.call('ZRANGE', KEYS[1], rank + 1, rank + ARGV[3], 'WITHSCORES')}
end
rank = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
return {0, redis.call('ZRANGE', KEYS[1], rank, rank + ARGV[3] - 1, 'WITHSCORES')}
",
);

/// Reads the first members, or those after one. Members with its score that stand before it are left out.
pub(super) async fn after(
    client: &RedisClient,
    key: &str,
    last: Option<&Member>,
) -> Result<(Vec<Member>, Option<Member>), RedisError> {
    let Some(last) = last else {
        return range(client, key, 0).await;
    };
    let call = AFTER.keys(&[key]).arg(&last.score[..]).arg(&last.name[..]).arg(PAGE);
    let answer = client.script(&call).await?;
    let [is_there, page] = as_array(&answer) else { return Ok((Vec::new(), None)) };
    let mut page = members(page.clone());
    let end = page.last().cloned();
    if as_int(is_there) == 0 {
        // Where the member has gone, the page begins with the first of its score. Those before its name were yielded
        // already.
        page.retain(|member| member.score != last.score || member.name > last.name);
    }
    Ok((page, end))
}

/// Reads members from a rank on; a negative one counts from the end. Answers them, and the last that was looked at.
pub(super) async fn range(
    client: &RedisClient,
    key: &str,
    rank: i64,
) -> Result<(Vec<Member>, Option<Member>), RedisError> {
    let mut range = redis::cmd("ZRANGE");
    let end = if rank < 0 { -1 } else { rank + i64::try_from(PAGE).unwrap_or(0) - 1 };
    range.arg(key).arg(rank).arg(end).arg("WITHSCORES");
    let page = members(client.command(&range).await?);
    let last = page.last().cloned();
    Ok((page, last))
}

/// Counts the members below a score.
pub(super) async fn below(client: &RedisClient, key: &str, score: f64) -> Result<u64, RedisError> {
    let mut count = redis::cmd("ZCOUNT");
    count.arg(key).arg("-inf").arg(format!("({score}"));
    Ok(u64::try_from(as_int(&client.command(&count).await?)).unwrap_or(0))
}

fn members(value: Value) -> Vec<Member> {
    let Value::Array(flat) = value else { return Vec::new() };
    let mut flat = flat.into_iter();
    let mut members = Vec::with_capacity(flat.len() / 2);
    while let (Some(name), Some(score)) = (flat.next(), flat.next()) {
        let score = match score {
            // The third version of the protocol has numbers for scores.
            Value::Double(score) => Bytes::from(score.to_string()),
            score => bytes(score),
        };
        members.push(Member { name: bytes(name), score });
    }
    members
}

/// A value of a hash; `None` where there is none.
pub(super) fn value(value: Value) -> Option<Bytes> {
    as_text(&value)?;
    Some(bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_the_order_of_scores() {
        let place = |score: &'static str| Member { name: "a".into(), score: score.into() }.place();
        let scores = ["-inf", "-2", "-1", "0", "0.5", "1", "1795632806504", "inf"];
        for pair in scores.windows(2) {
            assert!(place(pair[0]) < place(pair[1]), "{pair:?}");
        }
        for score in scores {
            assert_eq!(score_of(place(score)), score.parse::<f64>().unwrap());
        }
        assert_eq!(place("nothing").0, place("0").0);
    }
}
