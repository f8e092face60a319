//! Listings.

use crate::record::{self, ShowParts};
use crate::walk::{Item, Walk};
use crate::{Client, ClientError, ListPage, ListRequest};
use striate_meta::keys;

impl Client {
    /// Lists one page of a bucket's objects. It costs one page of metadata, whatever the bucket's size, the page's
    /// depth, or the number of objects under a common prefix.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`].
    pub async fn list(&self, request: ListRequest) -> Result<ListPage, ClientError> {
        let walked = self
            .walk(&Walk {
                space: keys::objects(&request.bucket),
                tail_len: 0,
                prefix: &request.prefix,
                delimiter: &request.delimiter,
                after: &request.after,
                after_row: None,
                max: request.max_keys,
            })
            .await?;
        if walked.items.is_empty() {
            // Only a bucket that exists has objects.
            self.bucket_here(&request.bucket).await?;
        }
        let mut page = ListPage::default();
        let mut last = None;
        for item in walked.items {
            last = Some(match item {
                Item::Row(name, row) => {
                    let object = row.record()?;
                    let (info, _) =
                        record::open(name.clone(), object, self.inner.stripes.profiles(), ShowParts::No)?;
                    page.objects.push(info);
                    name
                }
                Item::Prefix(prefix) => {
                    page.common_prefixes.push(prefix.clone());
                    prefix
                }
            });
        }
        page.next = last.filter(|_| walked.more);
        Ok(page)
    }
}
