//! Reading: pages, counts, groups, statistics.

use dlq_core::store::{Group, Hours, Letters, Stats, reading};
use dlq_core::{
    DeadLetter, ErrorClass, Filter, LetterId, Order, Page, PageRequest, Reason, Status, StoreError,
    Timestamp,
};
use mongodb::bson::{Document, doc};
use mongodb::options::FindOptions;

use crate::MongoStore;
use crate::codec::{self, number, text};
use crate::db::{Coll, Db};
use crate::error::{During, Fault, Result};
use crate::filter::{All, sort};
use crate::keys;

/// The most times that letters are read again because their pieces were replaced meanwhile.
const TRIES: usize = 20;

impl Letters for MongoStore {
    async fn get(&self, id: LetterId) -> std::result::Result<Option<DeadLetter>, StoreError> {
        Ok(self.db().get_all(&[id]).await.during("read the letter")?.pop())
    }

    async fn get_all(
        &self,
        ids: Vec<LetterId>,
    ) -> std::result::Result<Vec<DeadLetter>, StoreError> {
        self.db().get_all(&ids).await.during("read letters")
    }

    async fn with_prefix(
        &self,
        digits: String,
        limit: u32,
    ) -> std::result::Result<Vec<LetterId>, StoreError> {
        self.db().with_prefix(&digits, limit).await.during("find the letter")
    }

    async fn list(
        &self,
        filter: Filter,
        page: PageRequest,
    ) -> std::result::Result<Page, StoreError> {
        self.db().list(&filter, page).await.during("list letters")
    }

    async fn count(&self, filter: Filter) -> std::result::Result<u64, StoreError> {
        let all = All::letters(&filter).build();
        self.db().count(Coll::Letters, all).await.during("count letters")
    }

    async fn groups(
        &self,
        filter: Filter,
        limit: u32,
    ) -> std::result::Result<Vec<Group>, StoreError> {
        self.db().groups(&filter, limit).await.during("group letters")
    }

    async fn stats(&self, filter: Filter) -> std::result::Result<Stats, StoreError> {
        self.db().stats(&filter).await.during("count letters")
    }

    async fn hours(
        &self,
        filter: Filter,
        since: Timestamp,
        hours: u32,
    ) -> std::result::Result<Hours, StoreError> {
        self.db().hours(&filter, Hours::new(since, hours)).await.during("count letters by hour")
    }
}

impl Db {
    async fn get_all(&self, ids: &[LetterId]) -> Result<Vec<DeadLetter>> {
        let mut wanted: Vec<_> = ids.to_vec();
        let mut letters = std::collections::HashMap::new();
        for _ in 0..TRIES {
            if wanted.is_empty() {
                break;
            }
            let ids: Vec<_> = wanted.iter().map(|id| keys::letter(*id)).collect();
            let filter = doc! { "_id": { "$in": ids }, "created": { "$exists": true } };
            let found = self.find(Coll::Letters, filter, FindOptions::default()).await?;
            let (rows, torn) = self.whole(found).await?;
            letters.extend(rows.into_iter().map(|row| (row.letter.id, row.letter)));
            // A letter whose pieces are missing was written anew after it was read. Only where that goes on is it
            // damage.
            wanted = torn;
        }
        if let Some(torn) = wanted.first() {
            let why = format!("pieces of the letter {torn} are missing");
            return Err(Fault::corrupt("letter", &why));
        }
        Ok(ids.iter().filter_map(|id| letters.get(id).cloned()).collect())
    }

    async fn with_prefix(&self, digits: &str, limit: u32) -> Result<Vec<LetterId>> {
        let is_prefix = digits.len() <= 32 && digits.bytes().all(|it| it.is_ascii_hexdigit());
        if !is_prefix || limit == 0 {
            return Ok(Vec::new());
        }
        let bound = |fill: &str| {
            let text = format!("{digits}{}", fill.repeat(32 - digits.len()));
            text.parse::<LetterId>().map_err(|error| Fault::corrupt("id", &error))
        };
        let filter = doc! {
            "_id": { "$gte": keys::letter(bound("0")?), "$lte": keys::letter(bound("f")?) },
            "created": { "$exists": true },
        };
        let options = FindOptions::builder()
            .sort(doc! { "_id": 1_i32 })
            .limit(i64::from(limit))
            .projection(doc! { "_id": 1_i32 })
            .build();
        self.find(Coll::Letters, filter, options).await?.iter().map(codec::letter_id).collect()
    }

    async fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page> {
        let most = page.limit.max(1) as usize + 1;
        let mut letters = Vec::new();
        for reading::Stretch { order, after } in reading::stretches(&page) {
            if letters.len() == most {
                break;
            }
            let mut all = All::letters(filter);
            let after = after.map(|(at, id)| dlq_core::Cursor::after(at, id));
            all.between(order, after, None);
            let options = FindOptions::builder()
                .sort(sort(order))
                .limit(i64::try_from(most - letters.len()).unwrap_or(i64::MAX))
                .projection(codec::head())
                .build();
            let found = self.find(Coll::Letters, all.build(), options).await?;
            for document in &found {
                letters.push(codec::read_summary(document)?);
            }
        }
        Ok(reading::cut(letters, &page))
    }

    async fn groups(&self, filter: &Filter, limit: u32) -> Result<Vec<Group>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let pipeline = vec![
            doc! { "$match": All::letters(filter).build() },
            // `$last` takes the letter that comes last, for which they have to come in their order.
            doc! { "$sort": sort(Order::OldestFirst) },
            doc! { "$group": {
                "_id": { "f": "$fingerprint", "c": "$consumer" },
                "n": { "$sum": 1_i64 },
                "first": { "$min": "$created" },
                "last": { "$max": "$created" },
                "sample": { "$last": "$_id" },
            } },
            doc! { "$sort": { "n": -1_i32, "_id.f": 1_i32, "_id.c": 1_i32 } },
            doc! { "$limit": i64::from(limit) },
        ];
        let found = self.aggregate(Coll::Letters, pipeline).await?;
        let samples: Vec<_> =
            found.iter().filter_map(|group| group.get("sample").cloned()).collect();
        let options = FindOptions::builder().projection(codec::head()).build();
        let samples = self.find(Coll::Letters, doc! { "_id": { "$in": samples } }, options).await?;
        let mut summaries = std::collections::HashMap::new();
        for sample in samples.iter().filter(|sample| sample.contains_key("created")) {
            let summary = codec::read_summary(sample)?;
            summaries.insert(summary.id, summary);
        }
        let mut groups = Vec::with_capacity(found.len());
        for group in &found {
            let of = group.get_document("_id");
            let of = of.map_err(|error| Fault::corrupt("group", &error))?;
            let sample = keys::id(group.get("sample")).map(LetterId::from_bytes);
            // A sample that is gone was deleted meanwhile, and the group with it, or nearly.
            let Some(sample) = sample.and_then(|id| summaries.remove(&id)) else { continue };
            groups.push(Group {
                fingerprint: word(of, "f")?,
                consumer: text(of, "c").unwrap_or_default().to_owned(),
                count: number(group, "n").unwrap_or(0).cast_unsigned(),
                first_seen: at(group, "first"),
                last_seen: at(group, "last"),
                sample,
            });
        }
        Ok(groups)
    }

    pub(crate) async fn stats(&self, filter: &Filter) -> Result<Stats> {
        let pipeline = vec![
            doc! { "$match": All::letters(filter).build() },
            doc! { "$group": {
                "_id": {
                    "status": "$status", "reason": "$reason", "cause": "$cause", "class": "$class",
                    "consumer": "$consumer", "subject": "$subject",
                },
                "n": { "$sum": 1_i64 },
                "first": { "$min": "$created" },
                "last": { "$max": "$created" },
            } },
        ];
        let mut stats = Stats::default();
        for kind in self.aggregate(Coll::Letters, pipeline).await? {
            let of = kind.get_document("_id");
            let of = of.map_err(|error| Fault::corrupt("count", &error))?;
            let n = number(&kind, "n").unwrap_or(0).cast_unsigned();
            let (first, last) = (at(&kind, "first"), at(&kind, "last"));
            let status: Status = word(of, "status")?;
            stats.total += n;
            *stats.by_status.entry(status).or_default() += n;
            stats.oldest = Some(stats.oldest.map_or(first, |oldest| oldest.min(first)));
            stats.newest = Some(stats.newest.map_or(last, |newest| newest.max(last)));
            // The counts below are of what somebody still has to deal with.
            if !status.is_unresolved() {
                continue;
            }
            let owned = |name| text(of, name).unwrap_or_default().to_owned();
            *stats.by_subject.entry(owned("subject")).or_default() += n;
            *stats.by_reason.entry(word::<Reason>(of, "reason")?).or_default() += n;
            *stats.by_class.entry(word::<ErrorClass>(of, "class")?).or_default() += n;
            *stats.by_consumer.entry(owned("consumer")).or_default() += n;
            if text(of, "cause").is_some() {
                *stats.by_cause.entry(word(of, "cause")?).or_default() += n;
            }
            let oldest = stats.oldest_unresolved.map_or(first, |oldest| oldest.min(first));
            stats.oldest_unresolved = Some(oldest);
        }
        Ok(stats)
    }
}

impl Db {
    async fn hours(&self, filter: &Filter, mut hours: Hours) -> Result<Hours> {
        let stored = All::letters(&hours.stored(filter)).build();
        for (hour, letters) in self.by_hour(stored, "created", &hours).await? {
            hours.add_stored_in(hour, letters);
        }
        if let Some(filter) = Hours::resolved(filter) {
            let resolved = All::letters(&filter).build();
            for (hour, letters) in self.by_hour(resolved, "updated", &hours).await? {
                hours.add_resolved_in(hour, letters);
            }
        }
        Ok(hours)
    }

    /// Returns the number of letters by the hour of one of their times, counted from the first of these hours.
    async fn by_hour(
        &self,
        filter: Document,
        field: &str,
        hours: &Hours,
    ) -> Result<Vec<(i64, u64)>> {
        let (since, until) = (hours.since.as_nanos(), hours.until().as_nanos());
        let since_then = doc! { "$subtract": [format!("${field}"), since] };
        let hour = i64::try_from(Hours::HOUR.as_nanos()).unwrap_or(i64::MAX);
        let pipeline = vec![
            doc! { "$match": { "$and": [filter, { field: { "$gte": since, "$lt": until } }] } },
            doc! { "$group": {
                "_id": { "$floor": { "$divide": [since_then, hour] } },
                "n": { "$sum": 1_i64 },
            } },
        ];
        let found = self.aggregate(Coll::Letters, pipeline).await?;
        let read = |counted: &Document| {
            Some((number(counted, "_id")?, number(counted, "n")?.cast_unsigned()))
        };
        Ok(found.iter().filter_map(read).collect())
    }
}

fn at(document: &Document, name: &str) -> Timestamp {
    Timestamp::from_nanos(number(document, name).unwrap_or(0))
}

fn word<T: std::str::FromStr<Err: std::fmt::Display>>(
    document: &Document,
    name: &str,
) -> Result<T> {
    let word = text(document, name).unwrap_or_default();
    word.parse().map_err(|error| Fault::corrupt(&format!("letter's `{name}`"), &error))
}
