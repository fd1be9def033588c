/// A promise that is broken on purpose, to see that the explorer finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The source acknowledges what it yields.
    AcknowledgesOnReceipt,
    /// The source counts each time that a message was given back as an attempt.
    CountsDeferrals,
    /// The sink confirms letters that it could not write.
    ConfirmsUnwrittenLetters,
    /// The retry queue confirms records that it could not write.
    ConfirmsUnwrittenRecords,
    /// The store records the outcome of a claim although somebody else has claimed the letter since.
    IgnoresFence,
    /// The store gives each letter to two claimers.
    HandsOutTwice,
}
