//! Plain cases of a batch in a few round trips: new letters, due letters, leases, finishes.
//!
//! Each letter is changed by one conditional update, which is atomic; a batch is not. A batch that is cut off leaves some
//! letters changed:
//!
//! | call | round trips | cut off in between |
//! |---|---|---|
//! | put of new letters | 2: switch of deduplication, insert | some are stored; put again, they are `Unchanged` |
//! | claim | 3: find, mark with a token, read back | leases end, and count as crashes |
//! | extend | 1, and 1 where one was not held | some leases are longer |
//! | finish | 1, and 1 where one was not plain | the same finish again is `Applied` |

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use dlq_core::store::{Claim, ClaimRequest, ClaimToken, Finish, Finished, rules};
use dlq_core::{DeadLetter, LetterId, Status};
use dlq_letters::{Changed, Row};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::FindOptions;

use crate::codec::{self, number, time};
use crate::db::{Coll, Db};
use crate::error::Result;
use crate::keys;
use crate::parts::Reference;
use crate::select::{due, due_order};

/// Times that a claim looks again because others took what it had found.
const LOOKS: usize = 4;

impl Db {
    /// Writes those of these letters that are new. Returns for each whether it was.
    pub(crate) async fn insert_new(&self, letters: &[DeadLetter]) -> Result<Vec<bool>> {
        // Where letters may have to be merged, each is looked at.
        if letters.is_empty() || self.is_dedup().await? {
            return Ok(vec![false; letters.len()]);
        }
        let (now, at) = (self.now().await?, self.server_now().await?);
        let mut documents = Vec::with_capacity(letters.len());
        for letter in letters {
            let row = Row::new(rules::put(letter.clone(), now));
            let mut document = self.fields(&row, Changed::All, true, at).await?.set;
            document.insert("_id", keys::letter(letter.id));
            // The version is greater than any of a letter of this id that was deleted, so that a call that saw that one
            // cannot change this one.
            document.insert("v", at.as_nanos() / 1_000);
            documents.push(document);
        }
        let parts: Vec<_> = documents.iter().map(Reference::all).collect();
        let wrote = self.insert(Coll::Letters, documents).await?;
        let taken: HashSet<_> = wrote.duplicates.into_iter().collect();
        // After an answer was lost, what is there may be what was just written, and its pieces are needed.
        if !wrote.is_repeated {
            let unused = taken.iter().filter_map(|at| parts.get(*at)).flatten();
            self.delete_parts(&unused.copied().collect::<Vec<_>>()).await?;
        }
        Ok((0..letters.len()).map(|at| !taken.contains(&at)).collect())
    }

    /// Claims due letters of no operation. `None`, and nothing is claimed, if an operation may have a say.
    pub(crate) async fn claim_plainly(&self, request: &ClaimRequest) -> Result<Option<Vec<Claim>>> {
        let mut claims = Vec::new();
        for look in 0..LOOKS {
            let now = self.now().await?;
            let wanted = i64::from(request.limit) - claims.len() as i64;
            if wanted <= 0 {
                break;
            }
            let fields = doc! { "operation": 1_i32 };
            let options = FindOptions::builder().sort(due_order()).limit(wanted);
            let options = options.projection(fields).build();
            let filter = due(&request.filter, now).build();
            let found = self.find(Coll::Letters, filter, options).await?;
            let has_operation = found.iter().any(|found| found.contains_key("operation"));
            // Where not all room is used up, operations may release letters into it.
            let has_room = (found.len() as i64) < wanted;
            // At the first look nothing is claimed yet, so that the engine can still take over all of the call.
            if look == 0 && (has_operation || has_room && self.may_release().await?) {
                return Ok(None);
            }
            let ids: Vec<_> = found
                .iter()
                .filter(|found| !found.contains_key("operation"))
                .filter_map(|found| found.get("_id").cloned())
                .collect();
            if ids.is_empty() {
                break;
            }
            let some = self.claim_these(&ids, request, now).await?;
            let is_all = some.len() == ids.len();
            claims.extend(some);
            if is_all {
                break;
            }
        }
        Ok(Some(claims))
    }

    /// Returns true if an operation may release letters to handlers.
    async fn may_release(&self) -> Result<bool> {
        let filter = doc! { "state": { "$in": ["canary", "running"] }, "target": "handler" };
        Ok(self.find_one(Coll::Operations, filter).await?.is_some())
    }

    /// Claims those of these letters that are still due, under a token of this call, in the order of `ids`.
    async fn claim_these(
        &self,
        ids: &[Bson],
        request: &ClaimRequest,
        now: dlq_core::Timestamp,
    ) -> Result<Vec<Claim>> {
        // The answer of an update is a number and does not say which letters: the token finds them, also after a lost
        // answer.
        let token = ObjectId::new();
        let until = now.after(request.lease);
        let q = |more: Document| {
            let mut q = doc! {
                "_id": { "$in": ids },
                "available": { "$lte": time(now) },
                "operation": { "$exists": false },
                "lock": { "$exists": false },
            };
            q.extend(more);
            q
        };
        let set = |more: Document| {
            let mut set = doc! {
                "status": Status::Replaying.as_str(),
                "claim_token": token,
                "claim_until": time(until),
                "claim_owner": request.owner.as_str(),
                "available": time(until),
                "last_retry": time(now),
                "updated": time(now),
            };
            set.extend(more);
            set
        };
        // There is an update for each status, since classic operators cannot copy the field into `claim_former`.
        let fresh = |status: Status| {
            doc! {
                "q": q(doc! { "status": status.as_str(), "claim_until": { "$exists": false } }),
                "u": {
                    "$set": set(doc! { "claim_former": status.as_str() }),
                    "$unset": { "due": "" },
                    "$inc": { "v": 1_i64, "fence": 1_i64 },
                },
                "multi": true,
            }
        };
        // A claim that is still there was not finished within its lease, which counts as a crash (G3).
        let lapsed = doc! {
            "q": q(doc! { "claim_until": { "$lte": time(now) }, "claim_sender": { "$exists": false } }),
            "u": {
                "$set": set(Document::new()),
                "$unset": { "due": "" },
                "$inc": { "v": 1_i64, "fence": 1_i64, "lapses": 1_i64 },
            },
            "multi": true,
        };
        let updates = vec![lapsed, fresh(Status::Pending), fresh(Status::Retrying)];
        self.update(Coll::Letters, updates).await?;
        let order: BTreeMap<_, _> = ids
            .iter()
            .enumerate()
            .filter_map(|(place, id)| Some((keys::id(Some(id))?, place)))
            .collect();
        let filter = doc! { "claim_token": token };
        let found = self.find(Coll::Letters, filter, FindOptions::default()).await?;
        let (mut rows, torn) = self.whole(found).await?;
        if !torn.is_empty() {
            tracing::warn!(letters = ?torn, "claimed letters were written anew meanwhile; their leases end");
        }
        rows.sort_by_key(|row| order.get(row.letter.id.as_bytes()).copied());
        let claim = |row: Row| {
            let held = row.claim.clone()?;
            Some(row.into_claim(held.former, held.until))
        };
        Ok(rows.into_iter().filter_map(claim).collect())
    }

    /// Extends claims. `None` if one of them is not plainly held.
    pub(crate) async fn extend_plainly(
        &self,
        tokens: &[ClaimToken],
        lease: Duration,
    ) -> Result<Option<Vec<bool>>> {
        let until = time(self.now().await?.after(lease));
        let ids: HashSet<_> = tokens.iter().map(|token| token.letter).collect();
        if ids.len() < tokens.len() {
            return Ok(None);
        }
        let extend = |token: &ClaimToken| {
            let mut q = held(token);
            q.insert("claim_sender", doc! { "$exists": false });
            let set = doc! { "claim_until": until.clone(), "available": until.clone() };
            doc! { "q": q, "u": { "$set": set, "$inc": { "v": 1_i64 } } }
        };
        // Where one was not held, the others are longer already, and the engine looks at each of them once more.
        let wrote = self.update(Coll::Letters, tokens.iter().map(extend).collect()).await?;
        let is_all = wrote.n == tokens.len() as u64;
        Ok(is_all.then(|| vec![true; tokens.len()]))
    }

    /// Ends those of these claims that ended well, of letters in no operation. Returns the answer for each of those.
    pub(crate) async fn end_plainly(
        &self,
        finishes: &[(ClaimToken, Finish)],
    ) -> Result<Vec<Option<Finished>>> {
        let now = self.now().await?;
        let (mut updates, mut plain) = (Vec::new(), Vec::new());
        for (token, finish) in finishes {
            let q = |former: Option<Status>| {
                let mut q = held(token);
                q.insert("operation", doc! { "$exists": false });
                if let Some(former) = former {
                    q.insert("claim_former", former.as_str());
                }
                q
            };
            let mut unset = doc! {
                "claim_until": "", "claim_former": "", "claim_owner": "", "claim_sender": "",
                "claim_token": "",
            };
            let mut set = doc! { "updated": time(now), "finished": token.fence.cast_signed() };
            match finish {
                Finish::Resolved(resolution) => {
                    set.insert("status", Status::Resolved.as_str());
                    set.insert("resolution", resolution.as_str());
                    set.insert("lapses", 0_i64);
                    unset.extend(doc! { "due": "", "available": "" });
                    let u = doc! { "$set": set, "$unset": unset, "$inc": { "v": 1_i64 } };
                    updates.push(doc! { "q": q(None), "u": u });
                }
                Finish::Released { after } => {
                    let due = time(now.after(*after));
                    set.extend(doc! { "due": due.clone(), "available": due });
                    for former in [Status::Pending, Status::Retrying] {
                        let mut set = set.clone();
                        set.insert("status", former.as_str());
                        let unset = unset.clone();
                        let u = doc! { "$set": set, "$unset": unset, "$inc": { "v": 1_i64 } };
                        updates.push(doc! { "q": q(Some(former)), "u": u });
                    }
                }
                Finish::Retry { .. } | Finish::Dead(_) => continue,
            }
            plain.push(*token);
        }
        if plain.is_empty() {
            return Ok(vec![None; finishes.len()]);
        }
        let wrote = self.update(Coll::Letters, updates).await?;
        // After a lost answer the second try finds nothing held: `finished` tells what the first has ended.
        let ended: HashSet<ClaimToken> = if wrote.n == plain.len() as u64 {
            plain.into_iter().collect()
        } else {
            self.ended(&plain).await?
        };
        let answer =
            |(token, _): &(ClaimToken, Finish)| ended.contains(token).then_some(Finished::Applied);
        Ok(finishes.iter().map(answer).collect())
    }

    /// Returns those of these claims that have been ended, now or before.
    async fn ended(&self, tokens: &[ClaimToken]) -> Result<HashSet<ClaimToken>> {
        let ids: Vec<_> = tokens.iter().map(|token| keys::letter(token.letter)).collect();
        let options = FindOptions::builder().projection(doc! { "finished": 1_i32 }).build();
        let found = self.find(Coll::Letters, doc! { "_id": { "$in": ids } }, options).await?;
        let finished: BTreeMap<LetterId, i64> = found
            .iter()
            .filter_map(|found| Some((codec::letter_id(found).ok()?, number(found, "finished")?)))
            .collect();
        let is_ended =
            |token: &&ClaimToken| finished.get(&token.letter) == Some(&token.fence.cast_signed());
        Ok(tokens.iter().filter(is_ended).copied().collect())
    }
}

/// The condition that a letter is held by this claim, and that nobody has locked it.
fn held(token: &ClaimToken) -> Document {
    doc! {
        "_id": keys::letter(token.letter),
        "fence": token.fence.cast_signed(),
        "generation": i64::from(token.generation),
        "claim_until": { "$exists": true },
        "lock": { "$exists": false },
    }
}
