//! What a chat template can do, found out by rendering small conversations.
//!
//! A template is a program, so its text says little: what counts is whether a word that was put into a
//! conversation comes out again, and whether a setting changes what comes out. Nothing is searched for in
//! the source. Called by `inspect`. Probes are rendered within the limits of any other rendering.

use serde_json::{Map, Value, json};

use super::{ChatTemplate, Moment, RenderError, RenderInput};

/// Words that no template writes by itself.
const USER: &str = "qzuserwordqz";
const SYSTEM: &str = "qzsystemwordqz";
const ANSWER: &str = "qzanswerwordqz";
const THOUGHT: &str = "qzthoughtwordqz";
const TOOL: &str = "qztoolwordqz";
const ARGUMENT: &str = "qzargumentwordqz";
const RESULT: &str = "qzresultwordqz";

/// Settings by which templates let callers choose how much is thought; the names are conventions of the
/// interface (`chat_template_kwargs`), with two values that should differ.
const SWITCHES: [(&str, [&str; 2]); 4] = [
    ("enable_thinking", ["true", "false"]),
    ("thinking", ["true", "false"]),
    ("reasoning_effort", ["\"high\"", "\"low\""]),
    ("thinking_budget", ["64", "0"]),
];

/// What came of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// What was asked for is in the text.
    Yes,
    /// The text is as if nothing had been asked for.
    Ignored,
    /// The template refuses or fails.
    Refused(RenderError),
}

impl Probed {
    /// Whether it can.
    pub fn is_yes(&self) -> bool {
        *self == Self::Yes
    }
}

/// What a template can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Shows what a user says.
    pub user: Probed,
    /// Shows a system message.
    pub system: Probed,
    /// Shows a whole conversation: question, answer, question.
    pub turns: Probed,
    /// Opens the answer's turn when it is asked to.
    pub opens_answer: bool,
    /// Shows content that is a list of parts.
    pub parts: Probed,
    /// Shows tools on offer.
    pub tools: Probed,
    /// Shows calls of tools, with their arguments.
    pub tool_calls: Probed,
    /// Shows what tools gave back.
    pub tool_results: Probed,
    /// Shows thoughts of an answer that is being worked on.
    pub thoughts: Probed,
    /// Settings that change how an answer starts.
    pub switches: Vec<&'static str>,
    /// Lets the last message be continued.
    pub continues: bool,
}

impl Probe {
    /// Of a template that takes too long for one word: it is not asked for more.
    fn refused(why: &Probed) -> Self {
        Self {
            user: why.clone(),
            system: why.clone(),
            turns: why.clone(),
            opens_answer: false,
            parts: why.clone(),
            tools: why.clone(),
            tool_calls: why.clone(),
            tool_results: why.clone(),
            thoughts: why.clone(),
            switches: Vec::new(),
            continues: false,
        }
    }
}

impl ChatTemplate {
    /// Finds out what the template can do. `bos` and `eos` are the texts of those tokens.
    pub fn probe(&self, bos: &str, eos: &str, now: Moment) -> Probe {
        let prober = Prober {
            template: self,
            bos,
            eos,
            now,
        };
        prober.probe()
    }
}

struct Prober<'a> {
    template: &'a ChatTemplate,
    bos: &'a str,
    eos: &'a str,
    now: Moment,
}

/// One rendering.
#[derive(Default)]
struct Conversation {
    messages: Value,
    tools: Option<Value>,
    kwargs: Map<String, Value>,
    is_open: bool,
    continues: bool,
}

impl Prober<'_> {
    fn render(&self, conversation: &Conversation) -> Result<String, RenderError> {
        self.template.render(&RenderInput {
            messages: &conversation.messages,
            tools: conversation.tools.as_ref(),
            documents: None,
            add_generation_prompt: conversation.is_open,
            continue_final_message: conversation.continues,
            kwargs: &conversation.kwargs,
            bos_token: self.bos,
            eos_token: self.eos,
            now: self.now,
        })
    }

    /// Whether words come out again.
    fn shows(&self, conversation: &Conversation, words: &[&str]) -> Probed {
        match self.render(conversation) {
            Ok(text) if words.iter().all(|word| text.contains(word)) => Probed::Yes,
            Ok(_) => Probed::Ignored,
            Err(error) => Probed::Refused(error),
        }
    }

    fn renders(&self, messages: Value, words: &[&str]) -> Probed {
        let conversation = Conversation {
            messages,
            ..Conversation::default()
        };
        self.shows(&conversation, words)
    }

    fn probe(&self) -> Probe {
        let user = json!({ "role": "user", "content": USER });
        let answer = json!({ "role": "assistant", "content": ANSWER });
        let parts = json!([{ "role": "user", "content": [{ "type": "text", "text": USER }] }]);
        let system = json!([{ "role": "system", "content": SYSTEM }, user]);
        let shows_user = self.renders(json!([user]), &[USER]);
        if matches!(shows_user, Probed::Refused(RenderError::Limit(_))) {
            return Probe::refused(&shows_user);
        }
        Probe {
            user: shows_user,
            system: self.renders(system, &[SYSTEM, USER]),
            turns: self.renders(json!([user, answer, user]), &[USER, ANSWER]),
            opens_answer: self.opens_answer(),
            parts: match self.renders(parts.clone(), &[USER]) {
                // A list that is printed as such shows its words and is not understood.
                Probed::Yes if self.prints_lists(parts) => Probed::Ignored,
                other => other,
            },
            tools: self.tools(),
            tool_calls: self.renders(calls(false), &[TOOL, ARGUMENT]),
            tool_results: self.renders(calls(true), &[RESULT]),
            thoughts: self.thoughts(),
            switches: self.switches(),
            continues: self.continues(),
        }
    }

    fn prints_lists(&self, messages: Value) -> bool {
        let conversation = Conversation {
            messages,
            ..Conversation::default()
        };
        self.render(&conversation)
            .is_ok_and(|text| text.contains("'type'") || text.contains("\"type\""))
    }

    fn opens_answer(&self) -> bool {
        let [closed, open] = [false, true].map(|is_open| self.question(Map::new(), is_open));
        matches!((closed, open), (Ok(closed), Ok(open)) if closed != open)
    }

    /// A question with settings.
    fn question(&self, kwargs: Map<String, Value>, is_open: bool) -> Result<String, RenderError> {
        self.render(&Conversation {
            messages: json!([{ "role": "user", "content": USER }]),
            kwargs,
            is_open,
            ..Conversation::default()
        })
    }

    fn tools(&self) -> Probed {
        let conversation = Conversation {
            messages: json!([{ "role": "user", "content": USER }]),
            tools: Some(json!([tool()])),
            is_open: true,
            ..Conversation::default()
        };
        self.shows(&conversation, &[TOOL, USER])
    }

    /// Thoughts of an answer that calls a tool: those of ended answers are dropped by many.
    fn thoughts(&self) -> Probed {
        let mut messages = calls(true);
        messages[1]["reasoning_content"] = THOUGHT.into();
        messages[1]["thinking"] = THOUGHT.into();
        let plain = json!([
            { "role": "user", "content": USER },
            { "role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT, "thinking": THOUGHT },
        ]);
        match self.renders(plain, &[THOUGHT]) {
            Probed::Yes => Probed::Yes,
            _ => self.renders(messages, &[THOUGHT]),
        }
    }

    fn switches(&self) -> Vec<&'static str> {
        let answer = |name: &str, value: &str| {
            let value = serde_json::from_str(value).unwrap_or_default();
            self.question(Map::from_iter([(name.to_owned(), value)]), true)
        };
        let changes = |(name, [one, other]): &(&'static str, [&str; 2])| {
            let (one, other) = (answer(name, one), answer(name, other));
            let differs = matches!((one, other), (Ok(one), Ok(other)) if one != other);
            differs.then_some(*name)
        };
        SWITCHES.iter().filter_map(changes).collect()
    }

    fn continues(&self) -> bool {
        let conversation = Conversation {
            messages: json!([
                { "role": "user", "content": USER },
                { "role": "assistant", "content": ANSWER },
            ]),
            continues: true,
            ..Conversation::default()
        };
        self.render(&conversation)
            .is_ok_and(|text| text.ends_with(ANSWER))
    }
}

fn tool() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Does nothing.",
            "parameters": {
                "type": "object",
                "properties": { "x": { "type": "string", "description": "Anything." } },
                "required": ["x"],
            },
        },
    })
}

/// A conversation in which a tool is called, and gives something back.
fn calls(has_result: bool) -> Value {
    let call = json!({
        "id": "abcdef123",
        "type": "function",
        "function": { "name": TOOL, "arguments": { "x": ARGUMENT } },
    });
    let mut messages = vec![
        json!({ "role": "user", "content": USER }),
        json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
    ];
    if has_result {
        messages.push(json!({
            "role": "tool", "name": TOOL, "tool_call_id": "abcdef123", "content": RESULT,
        }));
    }
    messages.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(source: &str) -> Probe {
        let template = ChatTemplate::new(source).expect("compiles");
        template.probe("<s>", "</s>", Moment::from_unix_seconds(0))
    }

    const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[answer]{% endif %}";

    #[test]
    fn what_is_shown_is_found() {
        let found = probe(PLAIN);
        assert!(found.user.is_yes() && found.system.is_yes() && found.turns.is_yes());
        assert!(found.opens_answer && found.continues);
        assert_eq!(
            found.parts,
            Probed::Ignored,
            "a printed list is not understood"
        );
        assert_eq!(found.tools, Probed::Ignored);
        assert_eq!(found.tool_calls, Probed::Ignored);
        assert_eq!(found.thoughts, Probed::Ignored);
        assert!(found.tool_results.is_yes(), "any role is shown");
        assert!(found.switches.is_empty());
    }

    #[test]
    fn a_name_in_a_comment_is_no_capability() {
        let source = format!("{{# tools enable_thinking tool_calls #}}{PLAIN}");
        assert_eq!(probe(&source), probe(PLAIN));
    }

    #[test]
    fn refusals_keep_their_reason() {
        let source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}";
        let found = probe(&format!("{source}{PLAIN}")).system;
        let Probed::Refused(error) = found else {
            panic!("{found:?}");
        };
        assert!(error.to_string().contains("no system here"), "{error}");
    }

    #[test]
    fn tools_and_thoughts_are_found_by_what_comes_out() {
        let source = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}\
             {% for m in messages %}{{ m.content }}{{ m.reasoning_content }}\
             {% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\
             {% endfor %}{% if add_generation_prompt %}[answer]{% if not enable_thinking %}!{% endif %}{% endif %}";
        let found = probe(source);
        assert!(found.tools.is_yes() && found.tool_calls.is_yes() && found.thoughts.is_yes());
        assert_eq!(found.switches, ["enable_thinking"]);
    }

    #[test]
    fn a_template_without_end_is_refused_in_good_time() {
        let found =
            probe("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
        assert!(
            matches!(found.user, Probed::Refused(RenderError::Limit(_))),
            "{found:?}"
        );
    }
}
