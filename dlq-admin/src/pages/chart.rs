//! Letters hour by hour, as a chart and as a table.

use dlq_core::store::Hours;
use maud::{Markup, html};

use super::parts::table;

/// Width of an hour, and of its bar.
const HOUR: usize = 4;
const BAR: usize = 3;
/// Height of the highest bar.
const HIGHEST: u64 = 60;
/// Height of the line between what came and what was resolved.
// The room above the highest bar is for the dates.
const LINE: u64 = HIGHEST + 14;
const HEIGHT: u64 = LINE + HIGHEST + 4;

/// Returns the chart of these hours, and the same as a table; `id` is the beginning of the ids of its parts.
pub(crate) fn by_hour(id: &str, hours: &Hours) -> Markup {
    // Both halves have one scale, so that what is resolved can be compared with what came.
    let most = hours.stored.iter().chain(&hours.resolved).copied().max().unwrap_or(0);
    let (stored, resolved) = (hours.stored.iter().sum::<u64>(), hours.resolved.iter().sum::<u64>());
    let days = hours.stored.len() / 24;
    let title = format!("{id}-title");
    html! {
        @if most == 0 {
            p { "No letter was stored or resolved in the last " (days) " days." }
        } @else {
            // Drawn here and without a library: the policy allows no foreign script, and no style of an element.
            svg.chart viewBox={ "0 0 " (hours.stored.len() * HOUR) " " (HEIGHT) } role="img" aria-labelledby=(title) {
                title id=(title) {
                    "Letters by hour in the last " (days) " days: " (stored) " stored, " (resolved) " resolved, at most " (most) " in an hour"
                }
                @for index in 0..hours.stored.len() { (hour(hours, index, most)) }
                line x1="0" x2=(hours.stored.len() * HOUR) y1=(LINE) y2=(LINE) {}
            }
            p.muted {
                "Above the line: letters that were stored, " (stored) " in all. Below: letters that were resolved and are still kept, "
                (resolved) " in all. The highest bar is " (most) " letters in an hour; days begin at midnight UTC."
            }
            details {
                summary { "As a table" }
                (rows(hours))
            }
        }
    }
}

/// Returns the bars of an hour, and where a day begins its date.
fn hour(hours: &Hours, index: usize, most: u64) -> Markup {
    let x = index * HOUR;
    let (above, below) = (height(hours.stored[index], most), height(hours.resolved[index], most));
    let at = hours.at(index).to_string();
    let is_midnight = at.contains("T00:00");
    html! {
        @if is_midnight {
            line x1=(x) x2=(x) y1="0" y2=(HEIGHT) {}
            text x=(x + 3) y="10" { (at.get(5..10).unwrap_or_default()) }
        }
        @if above > 0 { rect.stored x=(x) y=(LINE - above) width=(BAR) height=(above) {} }
        @if below > 0 { rect.resolved x=(x) y=(LINE) width=(BAR) height=(below) {} }
    }
}

/// Returns the height of a bar. Few letters beside many are seen all the same.
fn height(letters: u64, most: u64) -> u64 {
    // The product of a count and a height may be larger than 64 bits hold.
    (u128::from(letters) * u128::from(HIGHEST))
        .div_ceil(u128::from(most.max(1)))
        .try_into()
        .unwrap_or(HIGHEST)
}

fn rows(hours: &Hours) -> Markup {
    let all = hours.stored.iter().zip(&hours.resolved).enumerate().rev();
    let rows = html! {
        @for (index, (stored, resolved)) in all.filter(|(_, (stored, resolved))| **stored + **resolved > 0) {
            tr {
                th scope="row" { time { (hours.at(index)) } }
                td.number { (stored) }
                td.number { (resolved) }
            }
        }
    };
    table("Letters by hour", &["Hour from", "Stored", "Resolved"], rows)
}

#[cfg(test)]
mod tests {
    use dlq_core::Timestamp;

    use super::*;

    #[test]
    fn bars_fit_into_the_chart_and_few_letters_are_seen() {
        let mut hours = Hours::new(Timestamp::EPOCH, Hours::WEEK);
        hours.add_stored_in(0, u64::MAX / 2);
        hours.add_stored_in(167, 1);
        hours.add_resolved_in(3, 7);
        let chart = by_hour("c", &hours).into_string();
        assert!(
            chart.contains("<rect class=\"stored\" x=\"0\" y=\"14\" width=\"3\" height=\"60\">"),
            "{chart}"
        );
        assert!(
            chart.contains("<rect class=\"stored\" x=\"668\" y=\"73\" width=\"3\" height=\"1\">"),
            "{chart}"
        );
        assert!(chart.contains("role=\"img\" aria-labelledby=\"c-title\""), "{chart}");
        assert!(!chart.contains("style="), "no inline style is allowed");
        assert_eq!(
            chart.matches("<tr>").count(),
            1 + 3,
            "the table has the hours in which there was something"
        );
        let empty = by_hour("c", &Hours::new(Timestamp::EPOCH, Hours::WEEK)).into_string();
        assert!(empty.contains("No letter") && !empty.contains("svg"), "{empty}");
    }
}
