//! Three masters, formed by the commands that `redis-cli --cluster create` would send.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::{Error, Running, Service, View, wire};

const SLOTS: usize = 16_384;

/// How long one question to a node may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A node counts as failed after three seconds without an answer. The slots of the others are served meanwhile.
pub(super) fn configuration() -> String {
    "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout 3000\ncluster-require-full-coverage no\n"
        .to_owned()
}

/// Gives each node that has none its share of the slots, and makes the nodes known to the first.
pub(crate) fn form(nodes: &[Running]) -> Result<(), Error> {
    let share = SLOTS.div_ceil(nodes.len().max(1));
    for (index, node) in nodes.iter().enumerate() {
        if field(node, "cluster_slots_assigned")?.as_deref() == Some("0") {
            let epoch = (index + 1).to_string();
            ask(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch])?;
            let slots = index * share..((index + 1) * share).min(SLOTS);
            let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            ask(node, &words)?;
        }
    }
    for node in nodes.iter().skip(1) {
        ask(&nodes[0], &["CLUSTER", "MEET", "127.0.0.1", port(node)])?;
    }
    Ok(())
}

/// The nodes that this one takes for alive.
pub(crate) fn view(nodes: &[Running], node: &Running) -> Result<View, Error> {
    let known = ask(node, &["CLUSTER", "NODES"])?;
    let members = known.lines().filter_map(|line| {
        // id, address:port@bus, flags, …
        let mut words = line.split(' ').skip(1);
        let (address, flags) = (words.next()?, words.next()?);
        let lost = ["fail", "fail?", "handshake", "noaddr"];
        if flags.split(',').any(|flag| lost.contains(&flag)) {
            return None;
        }
        let known = address.split('@').next()?.rsplit(':').next()?;
        nodes.iter().position(|node| port(node) == known)
    });
    Ok(View { members: members.collect::<BTreeSet<_>>(), leader: None })
}

/// Fails unless the node knows an owner of every slot and answers for its own.
pub(crate) fn serves(node: &Running) -> Result<(), Error> {
    for (name, expected) in [("cluster_state", "ok"), ("cluster_slots_assigned", "16384")] {
        let found = field(node, name)?;
        if found.as_deref() != Some(expected) {
            let text = format!("its {name} is {found:?}, not {expected}");
            return Err(wire::no_answer(Service::Redis, text));
        }
    }
    Ok(())
}

fn field(node: &Running, name: &str) -> Result<Option<String>, Error> {
    let info = ask(node, &["CLUSTER", "INFO"])?;
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.map(|value| value.trim().to_owned()))
}

fn ask(node: &Running, words: &[&str]) -> Result<String, Error> {
    Ok(wire::redis::command(node.url(), words, PATIENCE)?.unwrap_or_default())
}

/// The port at the end of its URL.
fn port(node: &Running) -> &str {
    let authority = node.url().rsplit('/').find(|part| part.contains(':'));
    authority.and_then(|authority| authority.rsplit(':').next()).unwrap_or_default()
}
