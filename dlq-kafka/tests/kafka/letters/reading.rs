//! Which of several letters was first is known also when they stand in several partitions.

use dlq_testkit::fixtures::{died_again, letter};

use crate::fixture_letters::{Dead, available};
use crate::fixture_reading::Look as _;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_copies_are_one_letter_and_no_bytes_are_lost() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(4).await;
    let first = letter(1);
    let mut other = first.clone();
    other.message = other.message.with_payload(Some("other".into()));
    // The other one stands in a partition before that of the first, which was written before it.
    let last = died_again(&first);
    for (partition, letter) in [(3, &first), (2, &other), (3, &first), (3, &last), (1, &letter(2))]
    {
        dead.put(partition, letter).await;
    }
    let conflict = first.id.conflicting(&other.message);
    let wanted =
        [format!("{}.1", first.id), format!("{conflict}.0"), format!("{}.0", letter(2).id)];
    for _ in 0..5 {
        let read = dead.letters().all().await.unwrap();
        let deaths: Vec<_> = read.iter().map(|read| read.letter.death().to_string()).collect();
        assert_eq!(deaths, wanted, "whichever partition comes first");
        assert_eq!((read[2].partition, read[2].offset), (1, 0));
        assert_eq!(read[1].letter.message, other.message);
    }
}
