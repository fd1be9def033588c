//! Every extractor, with what it gives and what it refuses.

use bytes::Bytes;
use dlq_tower::core::{
    Cause, DeliveredFrom, Delivery, Headers, Message, Origin, Position, Reason, Timestamp,
};
use dlq_tower::extract::{
    Attempt, FromDelivery, FromRef, Json, Key, Meta, Payload, Rejection, State, take,
};
use dlq_tower::handler::{HandlerStack, handler};

use crate::fixture::{Payment, at_once, bytes, delivery, dies, payment, refuses, succeeds};

/// A handler that takes `T` and is content with any.
fn takes<T: FromDelivery<()> + Send + 'static>() -> HandlerStack {
    let any = |_: T| async {};
    handler("takes", any).build().unwrap()
}

fn tombstone() -> Delivery {
    delivery(Message::tombstone("payments"))
}

#[tokio::test]
async fn json_is_decoded_and_what_differs_is_named() {
    #[derive(serde::Deserialize)]
    struct Order {
        #[serde(rename = "items")]
        _items: Vec<Payment>,
    }
    let check = |Json(found): Json<Payment>| async move {
        assert_eq!(found, Payment { id: "a".to_owned(), customer: 7, cents: 5 });
    };
    succeeds(&handler("check", check).build().unwrap(), payment("a", 7, 5)).await;

    let text =
        r#"{"items":[{"id":"a","customer":1,"cents":1},{"id":"b","customer":"x","cents":1}]}"#;
    let failure = refuses(&takes::<Json<Order>>(), bytes(text), Cause::Decode).await;
    assert!(failure.message().contains("at `items[1].customer`"), "{failure}");
    assert!(failure.message().contains("Order` as JSON"), "{failure}");
    assert!(failure.messages[1].contains("expected u64"), "{failure}");
    assert!(failure.error_type.contains("serde_json"), "{failure:?}");

    let _ = refuses(&takes::<Json<Payment>>(), bytes("not json"), Cause::Decode).await;
    let _ = refuses(&takes::<Json<Payment>>(), bytes(""), Cause::Decode).await;
    let failure = refuses(&takes::<Json<Payment>>(), tombstone(), Cause::Malformed).await;
    assert!(failure.message().contains("a tombstone"), "{failure}");
}

#[cfg(feature = "msgpack")]
#[tokio::test]
async fn msgpack_is_decoded() {
    use dlq_tower::extract::MsgPack;

    let check = |MsgPack(found): MsgPack<(String, u8)>| async move {
        assert_eq!(found, ("a".to_owned(), 5));
    };
    let stack = handler("check", check).build().unwrap();
    let packed = rmp_serde::to_vec(&("a", 5)).unwrap();
    succeeds(&stack, delivery(Message::new("payments", packed.clone()))).await;
    let longer = [&packed[..], b"x"].concat();
    let failure = refuses(&stack, delivery(Message::new("payments", longer)), Cause::Decode).await;
    assert!(failure.message().contains("1 left over"), "{failure}");
    let _ = refuses(&stack, bytes("x"), Cause::Decode).await;
    let _ = refuses(&stack, tombstone(), Cause::Malformed).await;
}

#[cfg(feature = "protobuf")]
#[tokio::test]
async fn protobuf_is_decoded() {
    use dlq_tower::extract::Protobuf;
    use prost::Message as _;

    #[derive(Clone, PartialEq, prost::Message)]
    struct Charge {
        #[prost(uint64, tag = "1")]
        cents: u64,
    }
    let check = |Protobuf(found): Protobuf<Charge>| async move { assert_eq!(found.cents, 300) };
    let stack = handler("check", check).build().unwrap();
    let encoded = Charge { cents: 300 }.encode_to_vec();
    succeeds(&stack, delivery(Message::new("payments", encoded))).await;
    let _ = refuses(&stack, bytes("not protobuf"), Cause::Decode).await;
    let _ = refuses(&stack, tombstone(), Cause::Malformed).await;
}

#[tokio::test]
async fn absent_and_empty_differ() {
    let empty = |payload: Bytes| async move { assert!(payload.is_empty()) };
    succeeds(&handler("empty", empty).build().unwrap(), bytes("")).await;
    let _ = refuses(&takes::<Bytes>(), tombstone(), Cause::Malformed).await;

    let absent = |payload: Option<Bytes>, json: Option<Json<Payment>>, key: Option<Key>| async move {
        assert!(payload.is_none() && json.is_none() && key.is_none());
    };
    succeeds(&handler("absent", absent).build().unwrap(), tombstone()).await;

    let there = |payload: Option<Bytes>, key: Key| async move {
        assert_eq!((payload, key), (Some(Bytes::new()), Key(Bytes::new())));
    };
    let message = Message::new("payments", "").with_key("");
    succeeds(&handler("there", there).build().unwrap(), delivery(message)).await;

    let _ = refuses(&takes::<Option<Json<Payment>>>(), bytes("broken"), Cause::Decode).await;
    let _ = refuses(&takes::<Key>(), bytes(""), Cause::Malformed).await;
}

#[tokio::test]
async fn a_refusal_can_be_judged_by_the_handler() {
    let judge = |json: Result<Json<Payment>, Rejection>| async move {
        let rejection = json.unwrap_err();
        assert_eq!((rejection.cause(), rejection.is_absent()), (Cause::Decode, false));
    };
    succeeds(&handler("judge", judge).build().unwrap(), bytes("broken")).await;
}

#[tokio::test]
async fn the_whole_can_be_taken() {
    let whole = |headers: Headers, message: Message, delivery: Delivery| async move {
        assert_eq!(headers.get_str("tag"), Some("b"));
        assert_eq!(headers.len(), 2);
        assert_eq!(&message, delivery.message());
        assert_eq!(delivery.consumer(), "whole");
    };
    let message = Message::new("s", "x").with_header("tag", "a").with_header("tag", "b");
    succeeds(&handler("whole", whole).build().unwrap(), delivery(message)).await;
}

#[tokio::test]
async fn the_attempt_knows_whether_it_is_the_last() {
    let runs = |attempt: Attempt| async move {
        assert_eq!(attempt.max(), Some(3));
        assert_eq!(attempt.is_last(), attempt.number() == 3);
        if attempt.is_last() { Ok(()) } else { Err("again") }
    };
    let stack = handler("runs", runs).policy(at_once(3)).build().unwrap();
    succeeds(&stack, bytes("")).await;
    succeeds(&stack, bytes("").with_attempt(3)).await;
}

#[tokio::test]
async fn meta_has_every_count() {
    let check = |meta: Meta| async move {
        assert_eq!(&*meta.consumer, "check");
        assert_eq!(meta.origin, Origin::new("memory", "payments", Position::Offset(7)));
        assert_eq!(meta.delivered_from, DeliveredFrom::Retry);
        assert_eq!(meta.published_at, Some(Timestamp::from_millis(5)));
        let counts = [meta.deliveries, meta.crashes, meta.delayed_retries, meta.replays];
        assert_eq!(counts, [4, 1, 2, 3]);
        assert_eq!(meta.generation, 0);
        let trace = meta.trace.parent().unwrap().trace_id();
        assert_eq!(trace, "4bf92f3577b34da6a3ce929d0e0e4736");
    };
    let message = Message::new("s", "x")
        .with_published_at(Timestamp::from_millis(5))
        .with_header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let delivery = delivery(message)
        .with_delivered_from(DeliveredFrom::Retry)
        .with_deliveries(4)
        .with_crashes(1)
        .with_delayed_retries(2)
        .with_replays(3);
    succeeds(&handler("check", check).build().unwrap(), delivery).await;
}

#[tokio::test]
async fn state_is_taken_whole_or_in_part() {
    #[derive(Clone)]
    struct App {
        name: &'static str,
    }
    struct Name(&'static str);
    impl FromRef<App> for Name {
        fn from_ref(app: &App) -> Self {
            Self(app.name)
        }
    }
    let check = |State(app): State<App>, State(name): State<Name>| async move {
        assert_eq!((app.name, name.0), ("shop", "shop"));
    };
    let stack = handler("check", check).with_state(App { name: "shop" }).build().unwrap();
    succeeds(&stack, bytes("")).await;
}

#[tokio::test]
async fn extractors_of_ones_own_are_extractors() {
    struct Words(Vec<String>);
    impl Payload for Words {
        type Value = Vec<String>;
        fn decode(delivery: &Delivery) -> Result<Self, Rejection> {
            let bytes = Bytes::decode(delivery)?;
            if bytes.len() > 10 {
                return Err(Rejection::oversize("expected 10 bytes at most"));
            }
            let text = std::str::from_utf8(&bytes)
                .map_err(|error| Rejection::decode("expected text").with_source(error))?;
            Ok(Self(text.split(' ').map(str::to_owned).collect()))
        }
        fn value(&self) -> &Vec<String> {
            &self.0
        }
    }
    impl<S> FromDelivery<S> for Words {
        fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
            take(delivery)
        }
    }
    #[dlq_tower::dlq_handler(order_by = |words: &Vec<String>| words[0])]
    async fn split(Words(words): Words) {
        assert_eq!(words, ["a", "b"]);
    }
    let stack = split::handler().build().unwrap();
    succeeds(&stack, bytes("a b")).await;
    assert_eq!(dlq_tower::handler::Handles::order_key(&stack, &bytes("a b")).unwrap(), "a");
    let _ = refuses(&stack, bytes("much too long"), Cause::Oversize).await;
}

#[tokio::test]
async fn a_refusal_is_permanent_whatever_the_classifier_says() {
    use dlq_tower::core::ErrorClass;

    let stack = handler("h", |_: Json<Payment>| async { Err::<(), _>("never") })
        .classify(|_: &&'static str| ErrorClass::Transient)
        .policy(at_once(5))
        .build()
        .unwrap();
    let dead = dies(&stack, bytes("broken")).await;
    assert_eq!((dead.reason, dead.attempts), (Reason::Permanent, 1));
}

#[tokio::test]
async fn twelve_arguments_fit() {
    type H = Headers;
    #[allow(clippy::too_many_arguments, reason = "as many as fit")]
    async fn twelve(_: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H) {}
    succeeds(&handler("twelve", twelve).build().unwrap(), bytes("")).await;
}
