//! What a model file says of itself and what the model can do, without loading it.

use serde_json::{Map, Value};

use lab_base::weights;
use lab_core::engine::{self, PooledOutput};
use lab_core::models::towers::OpenedMedia;
use lab_core::models::{OpenedModel, tokenizer_of};
use lab_core::plan::Media;

use super::description::with_opened;
use super::{Pool, UnloadedModel};
use crate::http::error::Error;
use crate::served::ChatSetup;

/// The metadata and the abilities of a model.
#[derive(Debug)]
pub(crate) struct ModelCard {
    /// The metadata of the file. Arrays are null: a vocabulary has hundreds of thousands of entries.
    pub(crate) metadata: Map<String, Value>,
    /// The text of the chat template.
    pub(crate) template: Option<String>,
    pub(crate) writes_text: bool,
    pub(crate) calls_tools: bool,
    pub(crate) thinks: bool,
    /// Whether the vocabulary has tokens for fill-in-the-middle.
    pub(crate) fills_gaps: bool,
    pub(crate) embeds: bool,
    /// The media that it takes besides texts.
    pub(crate) media: Vec<Media>,
}

fn plain(value: &weights::Value) -> Value {
    match value {
        weights::Value::Array(_) => Value::Null,
        weights::Value::Str(text) => text.as_str().into(),
        // The decimal that was meant: 0.00001 and not 0.0000099999997.
        weights::Value::F32(number) => number.to_string().parse::<f64>().ok().into(),
        other => match (other.as_bool(), other.as_i64()) {
            (Some(flag), _) => flag.into(),
            (None, Some(number)) => number.into(),
            (None, None) => other.as_f64().into(),
        },
    }
}

impl ModelCard {
    fn of(model: UnloadedModel) -> Result<Self, String> {
        let OpenedModel {
            name,
            weights,
            vocabulary,
            plan,
            template,
            media,
            ..
        } = model.opened;
        let tokenizer = tokenizer_of(vocabulary, &weights).map_err(|error| error.to_string())?;
        let chat = ChatSetup::of(&weights, template.as_deref(), &tokenizer, &name);
        let ChatSetup {
            source, dialect, ..
        } = chat.map_err(|error| error.to_string())?;
        let metadata = weights.metadata().iter();
        let writes_text = engine::can_answer(&plan, &tokenizer).is_ok();
        let pooled = PooledOutput::of(&plan, weights.metadata());
        Ok(Self {
            metadata: metadata
                .map(|(key, value)| (key.to_owned(), plain(value)))
                .collect(),
            writes_text,
            calls_tools: writes_text && source.is_some() && dialect.shows_tools,
            thinks: writes_text && dialect.reasoning.is_some(),
            fills_gaps: writes_text && tokenizer.encode_gap("", "").is_ok_and(|gap| gap.is_some()),
            embeds: matches!(pooled, Ok(PooledOutput::Vector(_))),
            media: media.as_ref().map(OpenedMedia::kinds).unwrap_or_default(),
            template: source,
        })
    }
}

impl Pool {
    /// What is known of a model without loading it, from its file.
    pub(crate) async fn card(&self, name: &str) -> Result<ModelCard, Error> {
        let (name, entry, opener) = self.servable(name).await?;
        let _turn = self.describing.lock().await;
        let card = with_opened(opener, &entry, ModelCard::of).await;
        card.map_err(|why| Error::NotServable {
            name,
            why: Some(why).filter(|_| self.config.is_managed),
        })
    }
}
