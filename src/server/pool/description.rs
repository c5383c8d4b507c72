//! What is known of a model without loading it: its numbers, and its diagram.
//!
//! Both come from its file, on a separate thread, one at a time. Not here: models that are loaded.

use std::sync::Arc;

use lab_base::util::lock::lock;
use lab_core::engine::Limits;
use lab_core::model::{Estimator, Options};
use lab_core::models::sampling_defaults::SamplingDefaults;
use lab_core::models::{ModelSource, OpenedModel};
use lab_inspect::diagram::svg::{self, Fragment, Theme};
use lab_inspect::diagram::{Drawing, TracedPlan};

use super::{LoadState, ModelEntry, Pool};
use crate::http::error::Error;
use crate::served::{Modalities, ModelInfo};

/// A model whose weights were not read, with the options and limits with which it would run.
pub struct UnloadedModel {
    pub opened: OpenedModel,
    /// The options of its passes.
    pub options: Options,
    /// The limits of its engine.
    pub limits: Limits,
}

/// Opens a model under its served name without reading its weights; the error says why it cannot be served.
pub type Opener = Arc<dyn Fn(&str, &ModelSource) -> Result<UnloadedModel, String> + Send + Sync>;

/// The properties of a model that are known without loading it.
#[derive(Clone, Debug)]
pub struct Description {
    /// The numbers of the model.
    pub info: ModelInfo,
    /// Context length of a request, in tokens.
    pub n_ctx: usize,
    /// The sampling parameters for requests that do not set them.
    pub sampling: SamplingDefaults,
    /// The media that it takes.
    pub modalities: Modalities,
}

/// The part of a model that a diagram shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiagramView {
    /// The whole model.
    Stack,
    /// The kinds of its layers, down to operations and weights.
    Layers,
}

fn description_of(model: &UnloadedModel) -> Result<Description, String> {
    let UnloadedModel {
        opened,
        options,
        limits,
    } = model;
    // The graph of the largest pass, without memory: a definition may fit the file and still say what no operation does.
    let memory = Estimator::new(&opened.plan, &opened.weights)
        .and_then(|mut estimator| estimator.memory(options));
    memory.map_err(|error| error.to_string())?;
    Ok(Description {
        info: ModelInfo::of(&opened.plan),
        n_ctx: limits.n_ctx,
        sampling: opened.sampling.clone(),
        modalities: Modalities::of(opened.media.as_ref().map(|media| &media.processors)),
    })
}

fn diagram_of(
    UnloadedModel { opened, .. }: &UnloadedModel,
    view: DiagramView,
    theme: Theme,
) -> Result<String, String> {
    let traced = TracedPlan::new(&opened.name, opened.plan.clone(), false);
    let traced = traced.map_err(|error| error.to_string())?;
    let mut drawing = Drawing::new(&opened.def, &traced);
    if let Some(media) = &opened.media {
        let drawn = drawing.with_towers(&opened.plan, media);
        drawing = drawn.map_err(|error| error.to_string())?;
    }
    let (piece, what) = match view {
        DiagramView::Stack => (svg::stack(&drawing), "the whole model"),
        DiagramView::Layers => (svg::layers(&drawing), "its kinds of layers"),
    };
    Ok(svg::document(&drawing, &Fragment { theme, ..piece }, what))
}

/// Opens a model and computes something of it, on a thread that may block.
pub(super) async fn with_opened<T: Send + 'static>(
    opener: Opener,
    entry: &Arc<ModelEntry>,
    of: impl FnOnce(UnloadedModel) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let entry = Arc::clone(entry);
    let work = move || opener(&entry.name, &entry.source).and_then(of);
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(error.to_string()))
}

impl Pool {
    pub(super) async fn describe(&self, entry: &Arc<ModelEntry>) {
        let Some(opener) = self.config.opener.clone() else {
            return;
        };
        if matches!(*lock(&entry.state), LoadState::NotLoaded) {
            entry.refresh_description();
        }
        if lock(&entry.description).is_some() {
            return;
        }
        let _turn = self.describing.lock().await;
        if lock(&entry.description).is_some() {
            return;
        }
        let described = with_opened(opener, entry, |opened| description_of(&opened)).await;
        if let Err(fault) = &described {
            tracing::warn!(fault, "a model cannot be served");
        }
        // A load may have set the description in the meantime.
        lock(&entry.description).get_or_insert(described);
    }

    /// A model that can be served, with its own name, and what opens it.
    pub(super) async fn servable(
        &self,
        name: &str,
    ) -> Result<(String, Arc<ModelEntry>, Opener), Error> {
        let (name, entry) = self.entry(name)?;
        let Some(opener) = self.config.opener.clone() else {
            let message = "models that are not loaded are not described on this server";
            return Err(Error::unsupported("model", message));
        };
        self.describe(&entry).await;
        let fault = lock(&entry.description).clone().and_then(Result::err);
        match fault {
            None => Ok((name, entry, opener)),
            Some(fault) => {
                let why = Some(fault).filter(|_| self.config.is_managed);
                Err(Error::NotServable { name, why })
            }
        }
    }

    pub(crate) async fn draw(
        &self,
        name: &str,
        view: DiagramView,
        theme: Theme,
    ) -> Result<String, Error> {
        let (name, entry, opener) = self.servable(name).await?;
        let _turn = self.drawing.lock().await;
        let paint = move |opened: UnloadedModel| diagram_of(&opened, view, theme);
        let drawn = with_opened(opener, &entry, paint).await;
        drawn.map_err(|detail| Error::DrawingFailed { name, detail })
    }
}
