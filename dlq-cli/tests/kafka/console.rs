//! The console of a topic of dead letters.

use dlq_testkit::fixtures::varied;

use crate::fixture::Bench;
use crate::http::{console, document, get, latest_replay, post};
use crate::replay::waited;

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_shown_as_the_command_shows_it() {
    let Some(bench) = Bench::with("shown", (0..40).map(varied).collect()).await else { return };
    let serve = ["serve", "--console", "--metrics", "127.0.0.1:0"];
    let (process, address, _) = console(bench.command(&serve));
    let one = format!("letters/{}", varied(7).id);
    for (args, route) in [
        (&["list"] as &[&str], "letters"),
        (&["groups"], "groups"),
        (&["stats"], "stats"),
        (&["show", &varied(7).id.to_string()], &*one),
    ] {
        let mut served = document(&address, &format!("/api/v1/default/{route}"));
        let said = bench.run(&[args, &["-o", "json"]].concat()).ok().json();
        if said.get("next").is_none() {
            served.as_object_mut().unwrap().remove("next");
        }
        assert_eq!(served, said, "{args:?} and {route}");
    }
    let (status, page) = get(&address, "/s/default/letters", "");
    assert!(status == 200 && page.contains("<strong>40</strong> letters match"), "{page}");
    let change = post(&address, "/api/v1/default/mark", "", "all=true&mark=resolved&note=no");
    assert!(change.0 == 409 && change.1.contains("is a log of a broker"), "{}", change.1);
    process.signal("-TERM");
    assert_eq!(process.end().code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_of_a_topic_are_sent_back_once() {
    let Some(bench) = Bench::born("consoled", 6).await else { return };
    let serve = ["serve", "--console", "--metrics", "127.0.0.1:0"];
    let (process, address, _) = console(bench.command(&serve));
    let form = "all=true&to=origin&note=mended";
    let refused = post(&address, "/s/default/replay", "", form);
    assert!(refused.0 == 422 && refused.1.contains("type the number"), "{}", refused.1);
    assert_eq!(post(&address, "/s/default/replay", "", &format!("{form}&expect=6")).0, 303);
    let ended = latest_replay(&address, "complete");
    assert_eq!((&ended["sent"], &ended["left"]), (&6.into(), &0.into()), "{ended}");
    assert_eq!(bench.records("consoled").len(), 12);
    assert_eq!(document(&address, "/api/v1/default/count?status=sent")["count"], 6);
    let again = post(&address, "/api/v1/default/replay", "", form);
    assert!(again.0 == 200 && again.1.contains("\"sent before\":6"), "{}", again.1);
    assert_eq!(bench.records("consoled").len(), 12);
    process.signal("-TERM");
    assert_eq!(process.end().code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ladder_in_which_letters_waited_is_said() {
    let (letter, _) = waited("consoled-waited");
    let Some(bench) = Bench::with("consoled-waited", vec![letter]).await else { return };
    let serve = ["serve", "--console", "--metrics", "127.0.0.1:0"];
    let (_process, address, _) = console(bench.command(&serve));
    let planned = post(&address, "/api/v1/default/plan", "", "all=true");
    assert!(planned.0 == 200 && planned.1.contains("--ladder 10s"), "{}", planned.1);
    let page = get(&address, "/s/default/replay?all=true", "");
    assert!(page.0 == 200 && page.1.contains("--ladder 10s"), "{}", page.1);
}
