use super::*;
use crate::backend::{Backend, Local, Share, Split};

#[test]
fn a_backend_behind_a_pointer_is_called_directly() {
    assert!(Local::new().in_process().is_some_and(|engine| !engine.has_shares()));
    assert!(Arc::new(Local::new()).in_process().is_some());
    assert!(Box::new(Local::new()).in_process().is_some());
    let boxed: Box<dyn Backend> = Box::new(Arc::new(Split::new(Share::none())));
    assert!(boxed.in_process().is_some_and(|engine| engine.has_shares()));
}

#[test]
fn an_engine_knows_whether_others_use_it() {
    let local = Arc::new(Local::new());
    let engine = local.in_process().unwrap();
    assert!(engine.has_other_owners());
    drop(local);
    assert!(!engine.has_other_owners());
}
