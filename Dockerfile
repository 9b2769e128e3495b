# The broker in a container. Build: docker build -t hitbox .   Run: see compose.yaml
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[broker,cli]'

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels 'hitbox[broker,cli]' && rm -rf /wheels \
    && useradd --system --create-home --home-dir /var/lib/hitbox hitbox
USER hitbox
VOLUME /var/lib/hitbox
EXPOSE 8400
HEALTHCHECK --interval=10s --timeout=3s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8400/readyz', timeout=2)"]
ENTRYPOINT ["hitbox"]
CMD ["serve", "--data", "/var/lib/hitbox"]
