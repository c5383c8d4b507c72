//! Finds out how a model writes reasoning and tool calls, by rendering its chat template.
//!
//! A conversation with a tool call is rendered. The format is the one whose parser extracts the call. A template that
//! shows no calls may name the marks where it explains tools, or the vocabulary may have them as tokens.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::chat::template::{ChatTemplate, Moment, RenderInput};

use super::format::{CallBody, CallFormat, MarkPair, call_formats, reasoning_marks};
use super::parser::{OutputParser, OutputPart, Tool};

/// Words that occur in no template.
const USER: &str = "qzuserwordqz";
const THOUGHT: &str = "qzthoughtwordqz";
const ANSWER: &str = "qzanswerwordqz";
const TOOL: &str = "qztoolwordqz";
const KEY: &str = "qzkeywordqz";
const VALUE: &str = "qzargumentwordqz";
const RESULT: &str = "qzresultwordqz";

/// How a model writes reasoning and tool calls.
#[derive(Clone, Debug)]
pub struct ChatDialect {
    /// The format of calls; `None` only if there are no formats.
    pub format: Option<Arc<CallFormat>>,
    /// The marks around reasoning, if the model is known to reason.
    pub reasoning: Option<MarkPair>,
    /// Whether the template takes the arguments of calls as JSON text instead of an object.
    pub takes_text: bool,
    /// Whether the template shows the tools on offer.
    pub shows_tools: bool,
    /// Whether the template shows the calls in a conversation.
    pub shows_calls: bool,
    /// Whether the template shows the results of tools.
    pub shows_results: bool,
    /// Whether the template refuses a tool that has only a name.
    pub needs_whole_tools: bool,
    /// Whether the template refuses a message with calls that has both content and reasoning.
    pub joins_reasoning: bool,
    /// Whether the template shows only texts that are parts of a message, and none that is its content.
    pub needs_parts: bool,
    /// Whether the template has a role `developer`; other templates drop or refuse messages of that role.
    pub has_developer: bool,
}

struct Prober<'a> {
    template: &'a ChatTemplate,
    bos: &'a str,
    eos: &'a str,
}

impl Prober<'_> {
    fn render(&self, messages: &Value, is_open: bool) -> Option<String> {
        let parameters = json!({
            "type": "object",
            "properties": { KEY: { "type": "string", "description": "Anything." } },
            "required": [KEY],
        });
        self.offer(
            messages,
            &json!({ "name": TOOL, "description": "Nothing.", "parameters": parameters }),
            is_open,
        )
    }

    fn offer(&self, messages: &Value, function: &Value, is_open: bool) -> Option<String> {
        let tools = json!([{ "type": "function", "function": function }]);
        let input = RenderInput {
            messages,
            tools: Some(&tools),
            documents: None,
            add_generation_prompt: is_open,
            continue_final_message: false,
            kwargs: &Map::new(),
            bos_token: self.bos,
            eos_token: self.eos,
            now: Moment::from_unix_seconds(0),
        };
        self.template.render(&input).ok()
    }

    /// Whether a word is in none of these renderings, of which at least one succeeds.
    fn hides(&self, word: &str, all: &[Value]) -> bool {
        let all: Vec<String> = all
            .iter()
            .filter_map(|all| self.render(all, true))
            .collect();
        !all.is_empty() && !all.iter().any(|text| text.contains(word))
    }

    /// A conversation with a call and its result, in each form of the call's arguments.
    fn calling(content: &str) -> [Value; 2] {
        let arguments = json!({ KEY: VALUE });
        [arguments.to_string().into(), arguments].map(|arguments| {
            let call = json!({
                "id": "abcdef123", "type": "function",
                "function": { "name": TOOL, "arguments": arguments },
            });
            json!([
                { "role": "user", "content": USER },
                { "role": "assistant", "content": content, "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "abcdef123", "name": TOOL, "content": RESULT },
            ])
        })
    }

    fn joins_reasoning(&self) -> bool {
        let renders = |content: &str| {
            Self::calling(content).into_iter().any(|mut messages| {
                for name in ["reasoning_content", "reasoning", "thinking"] {
                    messages[1][name] = THOUGHT.into();
                }
                self.render(&messages, true).is_some()
            })
        };
        !renders(ANSWER) && renders("")
    }

    fn needs_parts(&self) -> bool {
        let shows = |content: Value| {
            let messages = json!([{ "role": "user", "content": content }]);
            let text = self.render(&messages, true).unwrap_or_default();
            text.contains(USER)
        };
        !shows(USER.into()) && shows(json!([{ "type": "text", "text": USER }]))
    }

    /// The rendered text of an answer in a conversation: all text after the question, and only the text after the
    /// prompt for the answer.
    fn answer(&self, answer: &Value) -> Option<[String; 2]> {
        let user = json!({ "role": "user", "content": USER });
        let result = json!({
            "role": "tool", "tool_call_id": "abcdef123", "name": TOOL, "content": "{}",
        });
        let all = self
            .render(&json!([user, answer]), false)
            .or_else(|| self.render(&json!([user, answer, result]), false))?;
        let prompt = self.render(&json!([user]), true).unwrap_or_default();
        let from = all.rfind(USER)? + USER.len();
        let same = all.bytes().zip(prompt.bytes());
        let mut n_same = same.take_while(|(a, b)| a == b).count();
        while !all.is_char_boundary(n_same) {
            n_same -= 1;
        }
        Some([from, n_same.max(from)].map(|from| all[from..].to_owned()))
    }

    fn call(&self, takes_text: bool) -> Option<[String; 2]> {
        let arguments = json!({ KEY: VALUE });
        let arguments = match takes_text {
            true => Value::String(arguments.to_string()),
            false => arguments,
        };
        let call = json!({
            "id": "abcdef123", "type": "function",
            "function": { "name": TOOL, "arguments": arguments },
        });
        let answer = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
        self.answer(&answer).filter(|texts| texts[0].contains(TOOL))
    }
}

/// The number of bytes of a text that a format leaves as content, if it extracts the call.
fn left_by(format: &Arc<CallFormat>, text: &str) -> Option<usize> {
    let tool = Tool {
        name: TOOL.into(),
        parameters: json!({ "properties": { KEY: { "type": "string" } } }),
    };
    let mut parser = OutputParser::new(Some(Arc::clone(format)), Arc::new(vec![tool]), None, false);
    let mut spans = parser.push(text);
    spans.extend(parser.finish(false));
    let (mut arguments, mut content) = (String::new(), 0);
    for span in &spans {
        match &span.part {
            Some(OutputPart::Arguments { text, .. }) => arguments.push_str(text),
            Some(OutputPart::Content(text)) => content += text.trim().len(),
            _ => {}
        }
    }
    let found: Value = serde_json::from_str(&arguments).ok()?;
    (parser.n_calls() == 1 && found == json!({ KEY: VALUE })).then_some(content)
}

/// The format that extracts a rendered call and leaves the least content; of equal ones, the most specific.
fn read_by(text: &str) -> Option<Arc<CallFormat>> {
    let all = call_formats().iter().filter(|format| !format.is_fallback);
    let all = all.filter_map(|format| Some((left_by(format, text)?, format)));
    let marks = |format: &CallFormat| format.starts().map(str::len).sum::<usize>();
    let best = all.min_by_key(|(left, format)| (*left, std::cmp::Reverse(marks(format))));
    best.map(|(_, format)| Arc::clone(format))
}

/// The format whose marks all occur in a text that explains tools.
fn explained_by(text: &str) -> Option<Arc<CallFormat>> {
    let has_all = |format: &&Arc<CallFormat>| {
        let parameter = format.parameter.iter().map(|marks| marks.open.trim());
        let mut all = format.starts().chain(parameter).peekable();
        all.peek().is_some() && !format.bare && all.all(|mark| text.contains(mark))
    };
    let all = call_formats()
        .iter()
        .filter(|f| f.body != CallBody::Channels)
        .filter(has_all);
    let size = |format: &CallFormat| {
        let parameter = format
            .parameter
            .as_ref()
            .map_or(0, |marks| marks.open.len());
        parameter + format.starts().map(str::len).sum::<usize>()
    };
    all.max_by_key(|format| size(format)).cloned()
}

fn fallback() -> Option<Arc<CallFormat>> {
    let plain = call_formats().iter().find(|format| format.is_fallback);
    plain.cloned()
}

impl ChatDialect {
    /// Probes the dialect of a model with this template, these texts of BOS and EOS, and these tokens (`is_token`).
    pub fn probe(
        template: &ChatTemplate,
        bos: &str,
        eos: &str,
        is_token: impl Fn(&str) -> bool,
    ) -> Self {
        let prober = Prober { template, bos, eos };
        let [object, text] = [false, true].map(|takes_text| {
            let rendered = prober.call(takes_text);
            // If answer and prompt share a prefix, the end of the prompt may lie within a mark.
            let mut texts = rendered.iter().flat_map(|texts| texts.iter().rev());
            let format = texts.find_map(|text| read_by(text));
            (rendered.is_some(), format)
        });
        let takes_text = object.1.is_none() && text.1.is_some();
        let user = json!([{ "role": "user", "content": USER }]);
        let explained = || explained_by(&prober.render(&user, true)?);
        let by_token = || {
            let has_all = |format: &&Arc<CallFormat>| {
                let mut marks = format.starts().peekable();
                !format.bare && marks.peek().is_some() && marks.all(&is_token)
            };
            let all = call_formats().iter().filter(has_all);
            all.min_by_key(|format| format.body != CallBody::Object)
                .cloned()
        };
        let calls = Prober::calling("");
        let system = json!([{ "role": "system", "content": ANSWER }, user[0]]);
        let needs_whole_tools = prober
            .offer(&user, &json!({ "name": TOOL }), true)
            .is_none()
            && prober.render(&user, true).is_some();
        let shows_calls = object.0 || text.0 || !prober.hides(VALUE, &calls);
        let read = object.1.or(text.1);
        let format = read.or_else(explained).or_else(by_token);
        Self {
            format: format.or_else(fallback),
            reasoning: reasoning(&prober, &is_token),
            takes_text,
            shows_tools: !prober.hides(TOOL, &[user.clone(), system]),
            shows_calls,
            shows_results: !prober.hides(RESULT, &calls),
            needs_whole_tools,
            joins_reasoning: prober.joins_reasoning(),
            needs_parts: prober.needs_parts(),
            has_developer: template.mentions("developer"),
        }
    }

    /// The assumed dialect of a model without a template.
    pub fn unknown() -> Self {
        Self {
            format: fallback(),
            reasoning: None,
            takes_text: true,
            shows_tools: true,
            shows_calls: true,
            shows_results: true,
            needs_whole_tools: false,
            joins_reasoning: false,
            needs_parts: false,
            has_developer: false,
        }
    }

    /// Whether answers consist of messages with headers.
    pub fn has_channels(&self) -> bool {
        self.format
            .as_ref()
            .is_some_and(|f| f.body == CallBody::Channels)
    }

    /// Whether a prompt with this end has opened a block of reasoning.
    pub fn opens_reasoning(&self, prompt: &str) -> bool {
        let marks = self.reasoning.as_ref();
        marks.is_some_and(|marks| prompt.trim_end().ends_with(marks.open.as_str()))
    }

    /// Whether the start of an answer, which is to be continued, leaves a block of reasoning open.
    pub fn leaves_open(&self, answer: &str) -> bool {
        self.reasoning.as_ref().is_some_and(|marks| {
            let after = answer.trim_start().strip_prefix(marks.open.as_str());
            after.is_some_and(|after| !after.contains(&marks.close))
        })
    }
}

/// The marks of reasoning: those that a template writes around reasoning, starts an answer with, or strips from earlier
/// answers.
fn reasoning(prober: &Prober<'_>, is_token: &impl Fn(&str) -> bool) -> Option<MarkPair> {
    let call = json!({
        "id": "abcdef123", "type": "function",
        "function": { "name": TOOL, "arguments": { KEY: VALUE } },
    });
    let thinks = |content: &str, calls: Value| {
        json!({
            "role": "assistant", "content": content, "tool_calls": calls,
            "reasoning_content": THOUGHT, "reasoning": THOUGHT, "thinking": THOUGHT,
        })
    };
    let plain = json!({
        "role": "assistant", "content": ANSWER,
        "reasoning_content": THOUGHT, "reasoning": THOUGHT, "thinking": THOUGHT,
    });
    let user = json!([{ "role": "user", "content": USER }]);
    let shown = [
        prober.answer(&plain),
        prober.answer(&thinks("", json!([call]))),
    ];
    let prompt = prober.render(&user, true).unwrap_or_default();
    let after_user = prompt
        .rfind(USER)
        .map_or("", |at| &prompt[at + USER.len()..]);
    let surrounds = |marks: &MarkPair| {
        shown.iter().flatten().flatten().any(|text| {
            let thought = text.split_once(THOUGHT);
            thought.is_some_and(|(_, after)| after.trim_start().starts_with(&marks.close))
        })
    };
    let starts =
        |marks: &MarkPair| after_user.contains(&marks.open) || after_user.contains(&marks.close);
    let drops = |marks: &MarkPair| {
        let content = format!("{}\n{THOUGHT}\n{}\n\n{ANSWER}", marks.open, marks.close);
        let earlier = json!({ "role": "assistant", "content": content });
        let messages = json!([user[0], earlier, user[0]]);
        let text = prober.render(&messages, true);
        text.is_some_and(|text| text.contains(ANSWER) && !text.contains(THOUGHT))
    };
    let has = |marks: &MarkPair| is_token(&marks.open) && is_token(&marks.close);
    let tests: [&dyn Fn(&MarkPair) -> bool; 4] = [&surrounds, &starts, &drops, &has];
    let all = reasoning_marks();
    tests
        .iter()
        .find_map(|test| all.iter().find(|marks| test(marks)).cloned())
}
