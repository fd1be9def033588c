//! Looks of the pages on a phone and on a desk, in light and in dark; their weight, and their use by keyboard alone.

use std::collections::BTreeSet;

use base64::Engine as _;
use dlq_core::Filter;
use dlq_core::store::{
    Actor, GroupKey, GroupUpdate, Heartbeat, Maintenance as _, OperationSpec, Selection, Triage,
};
use fantoccini::actions::{InputSource as _, KeyAction, KeyActions};
use fantoccini::key::Key;
use serde_json::{Value, json};

use crate::page::{Page, screenshots};
use crate::world::{CONSUMER, DAY, HOUR, World, on_sqlite, payment, refused};

/// Most bytes of a page with everything that it loads.
const HEAVIEST: u64 = 150_000;
const WIDTHS: [u32; 2] = [390, 1280];

/// Fills a store as that of a shop with a bad day.
async fn fill(world: &World) {
    let (store, past) = (world.letters.store(), world.past.store());
    let customers = ["acme", "initech", "globex", "umbrella"];
    let of = |n: u64| customers[n as usize % customers.len()];
    world.put(DAY * 4, (0..30).map(|n| refused(n, of(n), "card expired"))).await;
    let old = Selection::matching(Filter::new().with_id(refused(3, of(3), "card expired").id));
    let bo = Actor::new("bo").with_note("test data");
    world.past.delete(old.unwrap(), bo).await.unwrap();
    world.put(HOUR * 20, (30..42).map(|n| refused(n, of(n), "the provider answers 503"))).await;
    past.heartbeat(Heartbeat::new("billing.refund", "1").host("web-1").build("1.4.1"))
        .await
        .unwrap();
    let limit = (42..170).map(|n| refused(n, of(n), "limit exceeded for this card today"));
    world.put(HOUR / 3, limit).await;
    let text = "{\"order\":170,\"customer\":\"acme\",\"cents\":\"12,00\"}".to_owned();
    world.put(HOUR / 4, [payment(170, "acme", text, "cents are no number")]).await;
    let here = Heartbeat::new(CONSUMER, "2").host("web-2").build("1.4.2").reads(["payments.>"]);
    store.heartbeat(here).await.unwrap();
    let snoozed = refused(30, of(30), "the provider answers 503").fingerprint;
    let until = Triage::Snoozed(world.letters.consumers().await.unwrap().1.after(DAY));
    let snooze = GroupUpdate::new().triage(until).owner("payments");
    let ana = || Actor::new("ana").with_note("ticket 4711");
    world.letters.update_group(GroupKey::new(CONSUMER, snoozed), snooze, ana()).await.unwrap();
    let expired = refused(0, of(0), "card expired").fingerprint;
    let replay = OperationSpec::replay(Filter::new().with_fingerprint(expired)).canary(5);
    let replay = replay.pace("10/s".parse().unwrap());
    world.letters.replay(replay, ana()).await.unwrap();
}

/// Returns the paths of the main pages, by names for their screenshots.
async fn main_pages(world: &World) -> Vec<(&'static str, String)> {
    let text = "{\"order\":170,\"customer\":\"acme\",\"cents\":\"12,00\"}".to_owned();
    let letter = payment(170, "acme", text, "cents are no number").id;
    let limit = refused(42, "globex", "limit exceeded for this card today").fingerprint;
    let operation = world.letters.operations(1).await.unwrap()[0].id;
    vec![
        ("overview", "s/default".to_owned()),
        ("groups", "s/default/groups".to_owned()),
        ("group", format!("s/default/group?fingerprint={limit}&consumer={CONSUMER}")),
        ("letters", "s/default/letters?status=pending&limit=8".to_owned()),
        ("letter", format!("s/default/letters/{letter}")),
        ("edit", format!("s/default/letters/{letter}/edit")),
        ("replay", format!("s/default/replay?fingerprint={limit}&to=origin&canary=5&rate=20/s")),
        ("change", format!("s/default/change?verb=delete&fingerprint={limit}")),
        ("operation", format!("s/default/operations/{operation}")),
        ("operations", "s/default/operations".to_owned()),
        ("consumers", "s/default/consumers".to_owned()),
        ("audit", "s/default/audit".to_owned()),
    ]
}

/// Shows the page as on a screen of this width.
async fn screen(page: &Page, width: u32, scheme: &str) {
    let size =
        json!({ "width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600 });
    page.command("Emulation.setDeviceMetricsOverride", size).await;
    // They would stand in front of what is at the edge.
    page.command("Emulation.setScrollbarsHidden", json!({ "hidden": true })).await;
    let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
    page.command("Emulation.setEmulatedMedia", scheme).await;
}

async fn photograph(page: &Page, name: &str) {
    let whole = json!({ "format": "png", "captureBeyondViewport": true, "optimizeForSpeed": true });
    let shot = page.command("Page.captureScreenshot", whole).await;
    let png = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap());
    std::fs::write(screenshots().join(format!("{name}.png")), png.unwrap()).unwrap();
}

/// Bytes of the page and of everything that it loaded.
const WEIGHT: &str = "return [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .reduce((sum, one) => sum + one.transferSize, 0)";
/// Number of pixels by which the page is wider than the window.
const TOO_WIDE: &str =
    "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
/// Fields that no label names, and fields and links without any name.
const NAMELESS: &str = "return [...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a')]
    .filter(one => !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim()))
    .map(one => one.outerHTML)";
/// Pairs of colours of texts that are hard to tell apart: a contrast of less than 4.5.
const FAINT: &str = "
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const back = one => {
        for (; one; one = one.parentElement) {
            const colour = parse(getComputedStyle(one).backgroundColor);
            if (colour.length < 4 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const found = new Set();
    for (const one of document.querySelectorAll('body *')) {
        if (![...one.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
        const [front, behind] = [parse(getComputedStyle(one).color), back(one)];
        const [high, low] = [light(front), light(behind)].sort((a, b) => b - a);
        if ((high + 0.05) / (low + 0.05) < 4.5) found.add(`${one.tagName} ${one.className}: ${front} on ${behind}`);
    }
    return [...found]";

/// Presses a key, as somebody without a mouse does.
async fn press(page: &Page, key: Key) {
    let keys = KeyActions::new("keyboard".to_owned());
    let pressed =
        keys.then(KeyAction::Down { value: key.into() }).then(KeyAction::Up { value: key.into() });
    page.client.perform_actions(pressed).await.unwrap();
}

/// Returns the text or label of the element with the focus, and true if the focus is seen.
const FOCUS: &str = "
    const one = document.activeElement;
    const style = getComputedStyle(one);
    const box = one.getBoundingClientRect();
    const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2
        && box.width > 0 && box.right > 0 && box.bottom > 0;
    const name = one.getAttribute('aria-label') || one.labels?.[0]?.textContent || one.textContent;
    return [name.trim(), seen]";

#[test]
fn a_group_is_quarantined_without_a_mouse() {
    on_sqlite("keyboard", async |page: &Page, world| {
        world.put(HOUR, (0..3).map(|n| refused(n, "acme", "card expired"))).await;
        let fingerprint = refused(0, "acme", "card expired").fingerprint;
        let focus = async || {
            let found = page.script(FOCUS).await;
            let (name, is_seen): (String, bool) = serde_json::from_value(found).unwrap();
            assert!(is_seen, "nobody sees that `{name}` has the focus");
            name
        };
        // Goes from field to field until one of this name.
        let reach = async |name: &str| {
            for _ in 0..60 {
                press(page, Key::Tab).await;
                if focus().await.starts_with(name) {
                    return;
                }
            }
            panic!("`{name}` is never reached");
        };
        page.open(&format!("s/default/group?fingerprint={fingerprint}&consumer={CONSUMER}")).await;
        page.sees("Decide").await;
        press(page, Key::Tab).await;
        assert_eq!(focus().await, "Skip to the content");
        press(page, Key::Enter).await;
        // Past the sections.
        press(page, Key::Tab).await;
        assert_eq!(focus().await, "Replay this group");
        reach("Quarantine").await;
        press(page, Key::Enter).await;
        page.sees("3 letters match").await;
        reach("Reason").await;
        page.client.active_element().await.unwrap().send_keys("ticket 4711").await.unwrap();
        reach("Type 3 to confirm").await;
        page.client.active_element().await.unwrap().send_keys("3").await.unwrap();
        reach("Quarantine letters").await;
        press(page, Key::Enter).await;
        page.sees("3 letters were changed").await;
    });
}

#[test]
fn pages_are_light_legible_and_as_wide_as_the_screen() {
    on_sqlite("looks", async |page: &Page, world| {
        fill(world).await;
        let pages = main_pages(world).await;
        let mut wrong = Vec::new();
        for width in WIDTHS {
            screen(page, width, "light").await;
            for (name, path) in &pages {
                page.open(path).await;
                page.sees("Audit").await;
                for scheme in ["light", "dark"] {
                    screen(page, width, scheme).await;
                    photograph(page, &format!("{name}-{width}-{scheme}")).await;
                    let faint = page.script(FAINT).await;
                    wrong.extend(found(&faint).map(|one| format!("{name} {scheme}: faint: {one}")));
                }
                let nameless = page.script(NAMELESS).await;
                wrong.extend(found(&nameless).map(|one| format!("{name}: nameless: {one}")));
                let too_wide = page.script(TOO_WIDE).await.as_i64().unwrap();
                if too_wide > 0 {
                    wrong.push(format!("{name}: {too_wide} pixels wider than {width}"));
                }
                let weight = page.script(WEIGHT).await.as_u64().unwrap();
                if weight == 0 || weight > HEAVIEST {
                    wrong.push(format!("{name}: {weight} bytes"));
                }
            }
        }
        // A list in full, which is too long for a picture.
        page.open("s/default/letters").await;
        page.sees("Next page").await;
        let weight = page.script(WEIGHT).await.as_u64().unwrap();
        if weight > HEAVIEST {
            wrong.push(format!("a list in full: {weight} bytes"));
        }
        screen(page, 1280, "light").await;
        let wrong: BTreeSet<_> = wrong.into_iter().collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

fn found(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}
