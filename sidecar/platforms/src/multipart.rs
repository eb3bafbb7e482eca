//! Uploads of one file as `multipart/form-data`.
//!
//! What must stay true: a response that comes before the end of the body ends the upload, so that a refusal is not hidden by a
//! body that the service no longer reads.

use bytes::Bytes;
use cofferdam_base::random;
use http::Method;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};

use crate::PlatformError;
use crate::rest::{Reply, Service};

/// The bytes between two reports of progress.
const PIECE_BYTES: usize = 64 * 1024;

/// The form around a file.
pub(crate) struct FileForm<'a> {
    /// The names and values of the fields before the file.
    pub(crate) fields: &'a [(&'a str, &'a str)],
    /// The name of the field with the file.
    pub(crate) file_field: &'a str,
}

impl Service {
    /// Sends a file to this path of the service. `sent` is called with the number of bytes sent so far.
    pub(crate) async fn upload(
        &self,
        action: &'static str,
        path: &str,
        form: FileForm<'_>,
        content: Bytes,
        sent: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Reply, PlatformError> {
        let boundary = random::hex::<16>();
        let head = form.head(&boundary);
        let tail = format!("\r\n--{boundary}--\r\n");
        let builder = self
            .request(Method::POST, path)
            .header(CONTENT_TYPE, format!("multipart/form-data; boundary={boundary}"))
            .header(CONTENT_LENGTH, head.len() + content.len() + tail.len());
        let (body, response) = self.stream(action, builder);
        let feed = async move {
            // If a send fails, the connection is closed, and the error is in the response.
            let total = content.len();
            let mut rest = content;
            body.send_data(head.into()).await.ok()?;
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                body.send_data(piece).await.ok()?;
                sent((total - rest.len()) as u64);
            }
            body.send_data(tail.into()).await.ok()
        };
        let mut exchange = std::pin::pin!(async { self.read_reply(action, response.await?).await });
        tokio::select! {
            biased;
            reply = &mut exchange => reply,
            _ = feed => exchange.await,
        }
    }
}

impl FileForm<'_> {
    /// Everything before the file's content.
    fn head(&self, boundary: &str) -> String {
        let mut head = String::new();
        for (name, value) in self.fields {
            head += &format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            );
        }
        head += &format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{}\"; filename=\"file\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n",
            self.file_field
        );
        head
    }
}
