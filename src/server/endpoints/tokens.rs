//! `POST /tokenize`, `POST /detokenize`, `GET /tokenizer_info` and `POST /apply-template`.
//!
//! Each endpoint takes the fields of vLLM and those of llama-server, and answers with the fields of both if they do not
//! contradict each other. A text is `prompt` (vLLM, with the special tokens that the vocabulary adds by default) or
//! `content` (llama-server, without them).

use std::sync::Arc;

use axum::extract::State;
use serde_json::json;

use crate::served::PromptError;

use super::adapters::ModelQuery;
use crate::Pool;
use crate::http::error::{Error, invalid, refuse};
use crate::http::json::Json;
use crate::request::fields::{BodyFields, FieldDoc, Fields, RequestPart as _, fields, joined};
use crate::request::media;
use crate::request::messages::Messages;

fields! {
    struct TokenizeFields {
        model: Option<String>,
        prompt: Option<String>,
        add_special_tokens: Option<bool>,
        return_token_strs: Option<bool>,
        content: Option<String>,
        add_special: Option<bool>,
        parse_special: Option<bool>,
        with_pieces: Option<bool>,
    }
}

fields! {
    pub(crate) struct DetokenizeFields {
        model: Option<String>,
        tokens: Vec<u32>,
    }
}

fields! {
    pub(crate) struct TemplateFields {
        model: Option<String>,
        ..messages: Messages,
    }
}

/// The documented fields of `/tokenize`, which tokenizes a text or messages.
pub(crate) fn tokenize_fields() -> Vec<FieldDoc> {
    let mut fields = joined(TokenizeFields::documented(), vec![Messages::documented()]);
    // Messages are optional: a text can take their place.
    let messages = fields.iter_mut().filter(|field| field.name == "messages");
    messages.for_each(|field| field.ty = format!("Option<{}>", field.ty));
    fields
}

pub(crate) async fn tokenize(
    State(pool): State<Arc<Pool>>,
    mut body: BodyFields,
) -> Result<Json, Error> {
    let text: TokenizeFields = body.take()?;
    let served = pool.get_or_default(text.model.as_deref()).await?;
    let fault = |error: PromptError, field| Error::from(error).with_prompt_field(field);
    let tokenizer = served.handle.tokenizer();
    let special = |default| {
        text.add_special_tokens
            .or(text.add_special)
            .unwrap_or(default)
    };
    let parses = text.parse_special.unwrap_or(true);
    let tokens = match (&text.prompt, &text.content) {
        (Some(prompt), None) => {
            let tokens = tokenizer.encode(prompt, special(true), parses);
            tokens.map_err(|error| fault(error.into(), "prompt"))?
        }
        (None, Some(content)) => {
            let tokens = tokenizer.encode(content, special(false), parses);
            tokens.map_err(|error| fault(error.into(), "content"))?
        }
        (None, None) if !body.has("messages") => {
            return invalid("content", "expected `content`, `prompt` or `messages`");
        }
        (None, None) => {
            let messages: Messages = body.take()?;
            messages.check()?;
            let media = media::prepared(&served, messages.media()?).await?;
            let (_, prompt) = messages.prompt(&messages.tools()?, &served, media)?;
            prompt.tokens
        }
        (Some(_), Some(_)) => {
            return invalid("content", "`prompt` and `content` are mutually exclusive");
        }
    };
    // Fields of a conversation exclude a text.
    if let Some(field) = Messages::documented().iter().find(|own| body.has(own.name)) {
        let name = field.name;
        return refuse(name, " and a text are mutually exclusive");
    }
    body.finish()?;
    let piece = |id: &u32| String::from_utf8_lossy(tokenizer.piece(*id)).into_owned();
    let mut answer = json!({
        "count": tokens.len(),
        "max_model_len": served.handle.limits().n_ctx,
        "tokens": tokens,
    });
    if text.with_pieces == Some(true) {
        let with_piece = |id: &u32| match std::str::from_utf8(tokenizer.piece(*id)) {
            Ok(piece) => json!({ "id": id, "piece": piece }),
            // The token is only a part of a character.
            Err(_) => json!({ "id": id, "piece": tokenizer.piece(*id) }),
        };
        answer["tokens"] = tokens.iter().map(with_piece).collect();
    }
    if text.return_token_strs == Some(true) {
        answer["token_strs"] = tokens.iter().map(piece).collect();
    }
    Ok(Json(answer))
}

pub(crate) async fn detokenize(
    State(pool): State<Arc<Pool>>,
    Fields(DetokenizeFields { model, tokens }): Fields<DetokenizeFields>,
) -> Result<Json, Error> {
    let served = pool.get_or_default(model.as_deref()).await?;
    let tokenizer = served.handle.tokenizer();
    let n_vocab = tokenizer.vocab_len();
    if let Some(at) = tokens.iter().position(|id| *id as usize >= n_vocab) {
        let param = format!("tokens[{at}]");
        let message = format!(
            "`{param}`: {} is not a token id below {n_vocab}",
            tokens[at]
        );
        return invalid(param, message);
    }
    let text = String::from_utf8_lossy(&tokenizer.decode(&tokens)).into_owned();
    Ok(Json(json!({ "prompt": text, "content": text })))
}

pub(crate) async fn info(State(pool): State<Arc<Pool>>, which: ModelQuery) -> Result<Json, Error> {
    let served = pool.get(which.name()).await?;
    let tokenizer = served.handle.tokenizer();
    let text = |id: Option<u32>| id.and_then(|id| Some(tokenizer.token_text(id)?.into_owned()));
    Ok(Json(json!({
        "model": served.name,
        "tokenizer_class": tokenizer.kind(),
        "vocab_size": tokenizer.vocab_len(),
        "model_max_length": served.handle.limits().n_ctx,
        "add_bos_token": tokenizer.adds_bos(),
        "add_eos_token": tokenizer.adds_eos(),
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "pad_token": text(tokenizer.pad()),
        "unk_token": text(tokenizer.unk()),
        "chat_template": served.chat_template,
    })))
}

pub(crate) async fn apply_template(
    State(pool): State<Arc<Pool>>,
    Fields(TemplateFields { model, messages }): Fields<TemplateFields>,
) -> Result<Json, Error> {
    let served = pool.get_or_default(model.as_deref()).await?;
    messages.check()?;
    media::check_taken(&served, &messages.media()?)?;
    let text = served.chat_text(&messages.conversation(&messages.tools()?, &served)?)?;
    Ok(Json(json!({ "prompt": text })))
}
