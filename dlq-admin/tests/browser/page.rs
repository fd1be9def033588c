//! A page in the browser, used by what a person sees of it: texts, labels, buttons.

use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fantoccini::elements::Element;
use fantoccini::error::CmdError;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, Locator};
use serde_json::{Value, json};
use tokio::time::sleep;
use url::Url;

use crate::browser::PATIENCE;

/// Time between two looks.
const POLL: Duration = Duration::from_millis(30);

pub(crate) struct Page {
    pub(crate) client: Client,
    root: String,
}

impl Page {
    pub(crate) fn new(client: Client, root: &str) -> Self {
        Self { client, root: root.to_owned() }
    }

    /// Opens a path of the console.
    pub(crate) async fn open(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.root)).await.unwrap();
    }

    pub(crate) async fn leave(&self) {
        self.client.goto("about:blank").await.unwrap();
    }

    pub(crate) async fn log_in(&self, secret: &str) {
        self.open("").await;
        self.fill("Token", secret).await;
        self.click("Log in").await;
        self.sees("Letters by status").await;
    }

    /// Clicks a link, a button or what opens a part of the page, by its text.
    pub(crate) async fn click(&self, text: &str) {
        let path = format!(
            "//*[self::a or self::button or self::summary][normalize-space()={text}]",
            text = quoted(text)
        );
        self.click_at(&path, text).await;
    }

    /// Clicks the first link in the row of a table that has this text.
    pub(crate) async fn click_row(&self, text: &str) {
        let path = format!("//tbody/tr[contains(normalize-space(), {})]//a", quoted(text));
        self.click_at(&path, text).await;
    }

    async fn click_at(&self, path: &str, text: &str) {
        self.until(&format!("a click on `{text}`"), async || {
            self.client.find(Locator::XPath(path)).await?.click().await?;
            Ok(Some(()))
        })
        .await;
    }

    /// Types a text into the field of this label, in place of what it has.
    pub(crate) async fn fill(&self, label: &str, text: &str) {
        self.until(&format!("the field `{label}`"), async || {
            let field = self.field(label).await?;
            field.clear().await?;
            field.send_keys(text).await?;
            Ok((field.prop("value").await?.as_deref() == Some(text)).then_some(()))
        })
        .await;
    }

    /// Chooses an option of the list of this label.
    pub(crate) async fn choose(&self, label: &str, option: &str) {
        self.until(&format!("`{option}` of `{label}`"), async || {
            self.field(label).await?.select_by_label(option).await?;
            Ok(Some(()))
        })
        .await;
    }

    /// Returns the value of the field of this label.
    pub(crate) async fn value(&self, label: &str) -> String {
        self.until(&format!("the field `{label}`"), async || {
            self.field(label).await?.prop("value").await
        })
        .await
    }

    async fn field(&self, label: &str) -> Result<Element, CmdError> {
        let path =
            format!("//*[@id=//label[starts-with(normalize-space(), {})]/@for]", quoted(label));
        self.client.find(Locator::XPath(&path)).await
    }

    /// Returns everything that is seen of the page.
    pub(crate) async fn text(&self) -> String {
        self.until("the page", async || {
            let text = self.client.execute("return document.body.innerText", vec![]).await?;
            Ok(text.as_str().map(str::to_owned))
        })
        .await
    }

    /// Waits until a text is seen.
    pub(crate) async fn sees(&self, text: &str) {
        self.until(&format!("`{text}`"), async || {
            let found = "return document.body.innerText.includes(arguments[0])
                || document.querySelector(`[aria-label='${CSS.escape(arguments[0])}']`) !== null";
            let found = self.client.execute(found, vec![json!(text)]).await?;
            Ok(found.as_bool().filter(|found| *found))
        })
        .await;
    }

    /// Waits until a page shows everything but a text.
    pub(crate) async fn sees_no(&self, text: &str) {
        self.until(&format!("a page without `{text}`"), async || {
            let found =
                "return document.readyState === 'complete' && document.querySelector('h1') !== null
                && !document.body.innerText.includes(arguments[0])";
            let found = self.client.execute(found, vec![json!(text)]).await?;
            Ok(found.as_bool().filter(|found| *found))
        })
        .await;
    }

    /// Waits until the operation on the page is shown in this state, with the buttons that it leaves.
    pub(crate) async fn shows_operation(&self, state: &str) {
        self.until(&format!("an operation that is {state}"), async || {
            let found = "return document.readyState === 'complete'
                && document.querySelector(`[data-shown=${arguments[0]}]`) !== null";
            let found = self.client.execute(found, vec![json!(state)]).await?;
            Ok(found.as_bool().filter(|found| *found))
        })
        .await;
    }

    /// Returns the text of a fact, by its name.
    pub(crate) async fn fact(&self, name: &str) -> String {
        let path = format!("//dt[normalize-space()={}]/../dd", quoted(name));
        self.until(&format!("the fact `{name}`"), async || {
            Ok(Some(self.client.find(Locator::XPath(&path)).await?.text().await?))
        })
        .await
    }

    /// Waits until the table of this name has rows of which each contains the texts that are expected of it.
    pub(crate) async fn has_rows(&self, table: &str, expected: &[&[&str]]) {
        self.until(&format!("`{table}` of {expected:?}"), async || {
            let rows = "const table = [...document.querySelectorAll('[role=region]')]
                .find(one => one.getAttribute('aria-label') === arguments[0]);
                return table ? [...table.querySelectorAll('tbody tr')].map(row => row.innerText) : null";
            let rows = self.client.execute(rows, vec![json!(table)]).await?;
            let rows: Vec<String> = serde_json::from_value(rows).unwrap_or_default();
            let is_so = |row: &String, texts: &&[&str]| texts.iter().all(|text| row.contains(text));
            let are_so = rows.iter().zip(expected).all(|(row, texts)| is_so(row, texts));
            Ok((rows.len() == expected.len() && are_so).then_some(()))
        })
        .await
    }

    /// Runs a script, and returns what it says.
    pub(crate) async fn script(&self, script: &str) -> Value {
        let run = async || self.client.execute(script, vec![]).await.map(Some);
        self.until(script, run).await
    }

    /// Waits until `look` finds something. The page may be replaced while it looks.
    pub(crate) async fn until<T, F>(&self, what: &str, look: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<Option<T>, CmdError>>,
    {
        let began = Instant::now();
        loop {
            let found = look().await;
            if let Ok(Some(found)) = found {
                return found;
            }
            let error = found.err().map(|error| error.to_string());
            assert!(began.elapsed() < PATIENCE, "cannot find {what}: {error:?}");
            sleep(POLL).await;
        }
    }

    /// Gives a command to the browser itself.
    pub(crate) async fn command(&self, name: &'static str, params: Value) -> Value {
        self.client.issue_cmd(Command { name, params }).await.unwrap()
    }

    /// Writes down what the page shows, for whoever looks for the reason of a failure.
    pub(crate) async fn report(&self, name: &str) {
        let url = self.client.current_url().await.map(|url| url.to_string());
        let text = self.client.execute("return document.body.innerText", vec![]).await;
        eprintln!(
            "{name} failed at {url:?}: {}",
            text.unwrap_or_default().as_str().unwrap_or_default()
        );
        if let Ok(png) = self.client.screenshot().await {
            let path = screenshots().join(format!("failed-{name}.png"));
            let _ = std::fs::write(path, png);
        }
    }
}

/// Returns the folder for screenshots.
pub(crate) fn screenshots() -> PathBuf {
    let folder = std::env::var_os("DLQ_SCREENSHOTS").map_or_else(
        || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots"),
        PathBuf::from,
    );
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns a text as XPath has it.
fn quoted(text: &str) -> String {
    assert!(!text.contains('"'));
    format!("\"{text}\"")
}

/// Command of the protocol of Chromium's developer tools.
#[derive(Debug)]
struct Command {
    name: &'static str,
    params: Value,
}

impl WebDriverCompatibleCommand for Command {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, url::ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (axum::http::Method, Option<String>) {
        let body = json!({ "cmd": self.name, "params": self.params });
        (axum::http::Method::POST, Some(body.to_string()))
    }
}
