//! Loads that many requests wait for, and that nobody waits for.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use super::*;
use crate::http::context::RequestContext;

fn pool(loader: Loader) -> Arc<Pool> {
    let sources = vec![ModelSource::BuiltIn("some")];
    Arc::new(Pool::new(sources, loader, PoolConfig::default()).expect("no aliases"))
}

#[tokio::test]
async fn many_requests_share_one_load_that_fails_and_the_next_loads_again() {
    let n_loads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&n_loads);
    let loader: Loader = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        Err(LoadError::new("no"))
    });
    let pool = pool(loader);
    let all = (0..32).map(|_| RequestContext::detached().scope(pool.get("some")));
    let all = futures_util::future::join_all(all).await;
    assert!(
        all.iter()
            .all(|got| matches!(got, Err(Error::LoadFailed { .. })))
    );
    assert_eq!(n_loads.load(Ordering::SeqCst), 1);
    assert!(
        RequestContext::detached()
            .scope(pool.get("default"))
            .await
            .is_err(),
        "the only model"
    );
    assert_eq!(n_loads.load(Ordering::SeqCst), 2);
    let info = &pool.infos()[0];
    assert_eq!(
        (info.state, info.n_loads, info.n_failures),
        ("not loaded", 0, 2)
    );
    assert!(!pool.unload("some").await.expect("it exists"));
    assert!(matches!(
        RequestContext::detached().enter(|| pool.own_name("sone")),
        Err(Error::UnknownModel { .. })
    ));
    // The only model answers to every name, unless the server is strict.
    let served = RequestContext::detached().enter(|| pool.serving_name("sone"));
    assert_eq!(served.ok().as_deref(), Some("some"));
}

#[tokio::test]
async fn a_load_goes_on_when_nobody_waits_for_it() {
    let n_loads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&n_loads);
    let loader: Loader = Arc::new(move |_| {
        std::thread::sleep(Duration::from_millis(100));
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("a loader that panics")
    });
    let pool = pool(loader);
    let given_up = tokio::time::timeout(
        Duration::from_millis(10),
        RequestContext::detached().scope(pool.get("some")),
    );
    assert!(given_up.await.is_err());
    assert_eq!(pool.infos()[0].state, "loading");
    assert!(
        RequestContext::detached()
            .scope(pool.get("some"))
            .await
            .is_err()
    );
    assert_eq!(n_loads.load(Ordering::SeqCst), 1);
    assert_eq!(pool.infos()[0].state, "not loaded");
}
