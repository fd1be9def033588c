use super::super::errors::without_identities;
use super::super::fields::place;
use super::super::values::{count, decimal, i32, i64, last_segment, millis, minimal, time, topic};

#[test]
fn binary_numbers_have_their_length() {
    assert_eq!(i32(&[0, 0, 1, 2]), Some(258));
    assert_eq!(i32(&[0xff; 4]), Some(-1));
    assert_eq!(i64(&[0x80, 0, 0, 0, 0, 0, 0, 0]), Some(i64::MIN));
    assert!([0, 1, 3, 5, 8].iter().all(|&length| i32(&vec![0; length]).is_none()));
    assert!([0, 4, 7, 9].iter().all(|&length| i64(&vec![0; length]).is_none()));
}

#[test]
fn numbers_of_as_few_bytes_as_they_need_have_a_sign() {
    let cases: &[(&[u8], Option<i64>)] = &[
        (&[], None),
        (&[0x7f], Some(127)),
        (&[0x80], Some(-128)),
        (&[0x00, 0x80], Some(128)),
        (&[0x01, 0x02, 0x03], Some(0x01_0203)),
        (&[0x01, 0xa3, 0x18, 0x59, 0x18, 0x00], Some(0x01a3_1859_1800)),
        (&[0xff; 8], Some(-1)),
        (&[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Some(i64::MAX)),
        (&[0; 9], None),
    ];
    for (bytes, expected) in cases {
        assert_eq!(minimal(bytes), *expected, "{bytes:?}");
    }
}

#[test]
fn counts_are_four_bytes_one_byte_or_digits() {
    assert_eq!(count(&[0, 0, 0, 3]), Some(3));
    assert_eq!(count(&[200]), Some(200));
    assert_eq!(count(b"17"), Some(17));
    assert_eq!(count(&[0xff; 4]), None);
    assert_eq!(count(&[0, 3]), None);
}

#[test]
fn digits_are_nothing_else() {
    assert_eq!(decimal(b"-1"), Some(-1));
    assert_eq!(decimal(b"9223372036854775807"), Some(i64::MAX));
    for bytes in [&b""[..], b"-", b"+1", b" 1", b"1.0", b"9223372036854775808", b"\xff", b"--1"] {
        assert_eq!(decimal(bytes), None, "{bytes:?}");
    }
}

#[test]
fn names_and_times_are_checked() {
    assert_eq!(topic(b"orders.v1_x-Y"), Some("orders.v1_x-Y"));
    assert!([&b""[..], b"a b", b"\xff", b"a/b", &[b'a'; 250]].iter().all(|it| topic(it).is_none()));
    assert_eq!(last_segment(b"kafka://topic/orders?x=/y"), Some("orders"));
    assert_eq!(last_segment(b"kafka://topic/"), None);
    assert_eq!(millis(-1), None);
    assert_eq!(time(b"1800000000000"), time(b"2027-01-15T08:00:00Z"));
    assert_eq!(time(b"tomorrow"), None);
    assert!(place(Some("t"), Some(i64::from(i32::MAX) + 1), Some(0)).is_none());
    assert!(place(Some("t"), Some(0), Some(-1)).is_none());
}

#[test]
fn identity_hashes_go_and_addresses_stay() {
    let cases = [
        ("bad a.B@1a2b3c, then [Lx;@ff", "bad a.B, then [Lx;"),
        ("ana@cafe.example @cafe a@ b@123456789", "ana@cafe.example @cafe a@ b@123456789"),
        ("@", "@"),
        ("order r17 of b2 failed", "order r of b failed"),
        ("r17x abc17 x_r17 17r utf8", "r17x abc17 x_r17 17r utf8"),
        ("refused, headers={a={1}, b=[2]} at x", "refused, headers= at x"),
        ("failedMessage=GenericMessage [payload=7, headers={id=1}] then", "failedMessage= then"),
        ("failedMessage=GenericMessage [payload=7, headers={id", "failedMessage="),
        ("failedMessage=null\nnext", "failedMessage=\nnext"),
    ];
    for (text, expected) in cases {
        assert_eq!(without_identities(text), expected);
    }
}
