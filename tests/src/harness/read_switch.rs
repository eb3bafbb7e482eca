//! Lets a test stop and resume the reading of a child's stdout.

use std::sync::{Condvar, Mutex, PoisonError};

/// Whether the child's stdout is read now.
#[derive(Debug, Default)]
pub(super) struct ReadSwitch {
    reading: Mutex<Reading>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Reading {
    #[default]
    Running,
    Stopped,
}

impl ReadSwitch {
    pub(super) fn set(&self, reading: Reading) {
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = reading;
        self.changed.notify_all();
    }

    pub(super) fn wait_until_reading(&self) {
        let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(reading, |reading| *reading == Reading::Stopped));
    }
}
