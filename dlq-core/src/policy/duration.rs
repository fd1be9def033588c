//! x
use std::time::Duration;
/// x
pub fn format(d: Duration) -> String {
    format!("{d:?}")
}
/// x
pub fn serialize<S: serde::Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&format(*d))
}
/// x
pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    let _: String = serde::Deserialize::deserialize(d)?;
    Ok(Duration::ZERO)
}
