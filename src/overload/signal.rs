//! What shows overload: [`LoadSignal`].
//!
//! It compares nothing: see [`Overload`](super::Overload).

/// Something that grows as the process has too much to do.
///
/// A function without arguments is one: `|| queue.len() as f64`. It is called by a request
/// each 20 ms, so it must not block. A load that is no number (NaN), and a panic, are
/// ignored, with one warning (`RL013`).
///
/// ```
/// use tower_ratelimit::overload::LoadSignal;
///
/// struct Memory { used: u64, limit: u64 }
///
/// impl LoadSignal for Memory {
///     fn name(&self) -> &str {
///         "memory"
///     }
///
///     fn load(&self) -> f64 {
///         self.used as f64 / self.limit as f64
///     }
/// }
/// # assert_eq!(Memory { used: 1, limit: 2 }.load(), 0.5);
/// ```
#[doc(hidden)]
pub trait LoadSignal: Send + Sync + 'static {
    /// The load now, in the unit of its threshold.
    fn load(&self) -> f64;

    /// What the signal is called in the log and in errors.
    fn name(&self) -> &str {
        "signal"
    }

    /// The highest load that there can be.
    #[doc(hidden)]
    fn most(&self) -> f64 {
        f64::INFINITY
    }

    /// Why it cannot be measured here.
    ///
    /// # Errors
    ///
    /// The reason.
    #[doc(hidden)]
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl<F: Fn() -> f64 + Send + Sync + 'static> LoadSignal for F {
    fn load(&self) -> f64 {
        self()
    }
}

/// A signal with a name.
pub(super) struct Named<F> {
    pub(super) name: String,
    pub(super) load: F,
}

impl<F: Fn() -> f64 + Send + Sync + 'static> LoadSignal for Named<F> {
    fn load(&self) -> f64 {
        (self.load)()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// The names of the signals that a policy file can have.
pub(crate) const CPU: &str = "cpu";
pub(crate) const SCHEDULING_DELAY: &str = "scheduling_delay";
